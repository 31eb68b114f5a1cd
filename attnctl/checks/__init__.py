"""What a value may be: limits, tolerances, types of arguments and of documents' fields, selections."""
