"""`attnctl schema`: the JSON Schema of what attnctl writes."""
