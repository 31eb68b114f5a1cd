"""A prediction that is watched while heads are taken away and edges cut: what that does to it."""
