"""Draw pictures with matplotlib. In attnctl's own process matplotlib does not report where it keeps its list of fonts."""

import logging

from attnctl.runtime import light_import

if light_import.alone:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
