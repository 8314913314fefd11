"""Ids that text, tokenizers and models agree on."""

# The ids that every tokenizer of this project reserves, in SentencePiece's order of roles.
PAD_ID, EOS_ID, UNK_ID, BOS_ID = 0, 1, 2, 3
