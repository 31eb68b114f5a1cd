"""The commands, each with what belongs to it alone; `attnctl.cli.app` lists them."""
