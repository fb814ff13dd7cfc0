"""Rules of the name that a node's operator chooses.

A name is for people. Nobody checks who chose it, two nodes may have the same one, and no decision
depends on it. It is refused unless it is safe to print on a line of text: nothing in it moves the
cursor, changes the direction of the text around it, or is invisible.

The rules use the character data of Unicode 3.2, as stringprep (RFC 3454) does. The data of later
versions differ between releases of Python: a record would be valid on one node and, on another, a
fault of the peer that forwarded it.
"""

from unicodedata import ucd_3_2_0 as unicode

NODE_NAME_CHARACTERS_MAX = 32

MARKS_MAX = 2
"""Maximum combining marks on one character; more of them cover the lines above and below."""

_PRINTABLE = frozenset("LNPSM")
"""First letters of the categories of letters, numbers, punctuation, symbols and marks. Not among
them are separators, controls, formats (bidirectional and zero-width ones), and the unassigned."""

_BLANK = frozenset(
    "\u00ad\u034f"  # soft hyphen, grapheme joiner
    "\u115f\u1160\u3164\uffa0"  # Hangul fillers
    "\u17b4\u17b5\u2800"  # inherent vowels of Khmer, blank braille pattern
    "\u180b\u180c\u180d"  # selectors of Mongolian variants
    + "".join(map(chr, range(0xFE00, 0xFE10)))  # variation selectors
)
"""Characters of these categories that show nothing."""


def check_node_name(name: str) -> str:
    """Return a valid name, which may be empty; raises ``ValueError`` with the reason.

    The reason repeats no character that a terminal would obey.
    """
    if len(name) > NODE_NAME_CHARACTERS_MAX:
        raise ValueError(f"a name has at most {NODE_NAME_CHARACTERS_MAX} characters")
    marks = 0
    for place, character in enumerate(name):
        category = unicode.category(character)
        if character in _BLANK or (category[0] not in _PRINTABLE and character != " "):
            raise ValueError(f"a name cannot contain the character U+{ord(character):04X}")
        marks = marks + 1 if category[0] == "M" else 0
        if marks > min(place, MARKS_MAX):
            raise ValueError(f"a name has at most {MARKS_MAX} combining marks on a character")
    if name != name.strip(" "):
        raise ValueError("a name neither begins nor ends with a space")
    if unicode.normalize("NFC", name) != name:
        raise ValueError("a name must be in Unicode's composed form (NFC)")
    return name
