"""One recurrent cell per file, with its naive reference beside the fast path. Importing this registers them all."""

from cropstar.models.cells import gru, indrnn, lstm, lstm_forget, mingru, rhn, rnn, star

__all__ = ["gru", "indrnn", "lstm", "lstm_forget", "mingru", "rhn", "rnn", "star"]
