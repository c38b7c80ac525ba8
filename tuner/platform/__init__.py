"""Interfaces of driver, farm and store to the outside: time, files, threads, actors.

These packages call `time`, `threading` and `os` only here.  So a farm can run in a simulated environment, with full disks, torn writes,
dying actors and late messages, from a seed.
"""
