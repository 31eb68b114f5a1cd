"""`attnctl needle`: does a model find a planted fact, and which heads fetch it?"""
