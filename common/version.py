"""The version of this program, as setup.py states it."""

VERSION = '0.1.0'
