"""Mutants: mistakes that the tests have to notice. A tool, which no test run collects."""
