"""Tokenizers: text to token ids and back.

`CharTokenizer` needs no file: one token a character, and a few special tokens. `HfTokenizer` reads a `tokenizer.json` as it
lies beside a Hugging Face checkpoint. Both name the special tokens of a conversation as Qwen3 does, so that one chat format
serves both. Nothing here imports JAX.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAD = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))
"""Newline and the printable characters of ASCII: the alphabet of a new model."""


class CharTokenizer:
    """One token for each character of an alphabet, after the special tokens.

    Ids: padding 0, end of turn 1, start of turn 2, then `specials`, then the alphabet in its order.

    Args:
        alphabet: the characters, each once.
        specials: further strings that are one token each, such as `<tool_call>`.

    Raises:
        ConfigError: the alphabet is empty or has a character twice; a special token is empty or there twice.

    """

    def __init__(self, alphabet: str = PRINTABLE, specials: Sequence[str] = ()) -> None:
        if not alphabet:
            raise ConfigError("the alphabet is empty", field="alphabet", allowed="at least one character")
        self.alphabet = alphabet
        tokens = (PAD, TURN_END, TURN_START, *specials)
        _check_once("specials", tokens)
        _check_once("alphabet", alphabet)
        self._texts = (*tokens, *alphabet)
        self._special_ids = {text: number for number, text in enumerate(tokens)}
        self._char_ids = {text: number for number, text in enumerate(alphabet, start=len(tokens))}
        longest_first = sorted(tokens, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")")
        self.vocab_size = len(self._texts)
        self.pad_id = 0
        self.end_id = 1
        self._silent = {0, 1, 2}

    def encode(self, text: str, *, special: bool = True, source: str = "") -> list[int]:
        """Token ids of a text.

        Args:
            text: what to encode.
            special: whether the names of special tokens in it stand for those tokens. False for text from outside, such as
                a tool's output, which must not be able to end a turn.
            source: where the text came from, for the error.

        Raises:
            DataError: a character is not in the alphabet.

        """
        try:
            if not special:
                return [self._char_ids[character] for character in text]
            ids: list[int] = []
            for number, part in enumerate(self._split.split(text)):
                if number % 2:
                    ids.append(self._special_ids[part])
                else:
                    ids.extend(self._char_ids[character] for character in part)
            return ids
        except KeyError as missing:
            raise self._unknown(missing.args[0], text, source) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; padding and the ends of turns are left out.

        Raises:
            DataError: an id is not in the vocabulary.

        """
        texts, silent = self._texts, self._silent
        parts = []
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise _unknown_id(token, self.vocab_size, "the character tokenizer")
            if token not in silent:
                parts.append(texts[token])
        return "".join(parts)

    def _unknown(self, character: str, text: str, source: str) -> DataError:
        at = text.find(character)
        near = text[max(at - 12, 0) : at + 13]
        return DataError(
            f"character {character!r} (U+{ord(character):04X}) at position {at} is not in the alphabet, in {near!r}",
            field=source or "text",
            value=character,
            allowed=f"the {len(self.alphabet)} characters {self.alphabet!r}",
            remedy="keep to these characters, give the tokenizer a larger alphabet, or use a checkpoint with its own tokenizer",
        )


def _check_once(field: str, texts: Sequence[str]) -> None:
    seen: set[str] = set()
    for text in texts:
        if not text or text in seen:
            problem = "stands there twice" if text else "is empty"
            raise ConfigError(f"{text!r} {problem}", field=field, value=text, allowed="each token once, none empty")
        seen.add(text)


def _unknown_id(token: int, size: int, name: str) -> DataError:
    return DataError(
        "a token id is not in the vocabulary",
        field=name,
        value=token,
        allowed=f"0 to {size - 1}",
        remedy="use the tokenizer of the model",
    )
