"""Contracts of plug-ins, for those who write one: classes that a test of their own derives from.

They need no test framework: methods `test_*` without arguments that raise AssertionError.  pytest and unittest (`class TestMine(XContract,
TestCase)`) run them as they are.
"""
