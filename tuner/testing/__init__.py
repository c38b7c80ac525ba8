"""Contracts of plug-ins, for their authors: base classes of tests.

They need no test framework: methods `test_*` without arguments that raise AssertionError.  pytest and unittest (`class TestMine(XContract,
TestCase)`) run them as they are.
"""
