"""Real jobs on this machine that are broken for real, and healthy ones beside them: does the diagnosis name it?"""
