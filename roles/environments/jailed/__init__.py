"""Programs that run inside a jail, such as checkers of model output.

They import only each other from this project: no other module is visible in a jail.
"""
