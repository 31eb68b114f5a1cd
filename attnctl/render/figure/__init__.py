"""Pictures drawn by matplotlib; in attnctl's own process it says nothing of where it keeps its list of fonts."""

import logging

from attnctl import light_import

if light_import.alone:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
