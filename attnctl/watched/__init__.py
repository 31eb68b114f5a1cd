"""A prediction that is watched while heads are ablated and edges cut: the effects on it."""
