"""What a step learns from: advantages out of rewards, and a loss for every trained token.

`algorithm.py` says what both are and joins them; every other file is one way to compute one of them, pure and without
knowledge of the trainer; `registry.py` names them. One more is a file, a value of the configuration's enum with its
sentence, a line of the registry and a test against numbers computed by hand.
"""
