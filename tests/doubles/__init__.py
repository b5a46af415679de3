"""Doubles of the processes below an agent. test_contract.py holds them and the real ones to the same assertions."""
