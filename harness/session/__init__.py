"""Execution and recording of planned runs, one by one."""
