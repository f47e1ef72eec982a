"""A subject's patches as a whole: what is rebound, where, with what, and whether it is put back.

What is rebound is found by comparing what torch and vLLM's modules hold before and after, never
from a list. Each claim is checked in a child process of its own, whose names it may spoil.
"""
