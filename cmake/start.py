#!python
"""The command `entrain` of the wheel: becomes the program inside the package, without importing it."""
import importlib.util
import os
import sys

package = os.path.dirname(importlib.util.find_spec("entrain").origin)
os.execv(os.path.join(package, "bin", "entrain"), ["entrain", *sys.argv[1:]])
