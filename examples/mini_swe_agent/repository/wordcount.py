"""Counts words."""


def count_words(text):
    return text.count(" ")


def longest_word(text):
    return min(text.split(), key=len)


def shout(text):
    return text.lower()
