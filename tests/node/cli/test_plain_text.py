import io

from node.cli.main import tolerate_encoding


def written(text, encoding, errors="strict"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    tolerate_encoding(stream)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def test_characters_that_an_encoding_lacks_become_ascii():
    assert written("✓ run → ready … ü\udcff", "ascii") == "+ run -> ready ... ??"
    assert written("✓ ü", "latin-1") == "+ ü"
    assert written("✓ ü \udcff", "utf-8") == "✓ ü ?"


def test_a_stream_with_a_rule_of_its_own_keeps_it():
    assert written("ü", "ascii", "backslashreplace") == "\\xfc"
