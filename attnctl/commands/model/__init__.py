"""`attnctl model`: the size of a model's attention from its configuration alone; the card of a trained model."""
