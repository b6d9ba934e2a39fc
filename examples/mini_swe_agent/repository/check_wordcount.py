import unittest

from wordcount import count_words, longest_word, shout


class WordCount(unittest.TestCase):
    def test_count_words(self):
        assert count_words("the quick brown fox") == 4
        assert count_words("") == 0

    def test_longest_word(self):
        assert longest_word("a quick fox") == "quick"

    def test_shout(self):
        assert shout("fox") == "FOX"
