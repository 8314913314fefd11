"""What does dividing attention logits by sqrt(d_k) do, and from which d_k on does it matter?"""
