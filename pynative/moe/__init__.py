"""Mixtures of experts: the router chooses, the dispatcher moves tokens, the experts compute."""
