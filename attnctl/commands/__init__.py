"""The commands, one folder or file each: `attnctl/registry.py` lists them."""
