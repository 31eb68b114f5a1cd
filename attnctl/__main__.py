"""`python -m attnctl` is `attnctl`."""

from attnctl.cli import main

main()
