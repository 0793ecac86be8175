"""A method at work: the modules it trains, its optimisers, and the steps that the loop asks for."""
