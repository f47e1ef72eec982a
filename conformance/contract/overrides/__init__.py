"""What a CPU runner overrides, held against the class that it overrides.

``names`` says from the source which methods there are, so that each has rows before anything is
imported; ``found`` says in the child what the classes really have; ``signatures`` compares what may
be passed, ``drivers`` what is done.
"""
