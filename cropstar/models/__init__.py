"""Networks over series: cells, the stack they form, heads, and the zoo that names them. torch and core alone."""
