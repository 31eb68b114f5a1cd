"""`attnctl model`: how large a model's attention is, from its configuration alone; the card of a trained one."""
