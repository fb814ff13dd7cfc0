"""What runs behind the walls of a jail: checkers that meet the text of models.

They import nothing of this project beside each other, because nothing else is in there with them.
"""
