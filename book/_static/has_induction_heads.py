"""Does my model have induction heads?  python has_induction_heads.py gpt2   (needs torch and transformers alone)"""

import math
import sys

import torch
from transformers import AutoModelForCausalLM

name = sys.argv[1] if len(sys.argv) > 1 else "gpt2"  # a name on the hub, or a folder
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager").eval()
config = model.config.get_text_config()
longest = getattr(config, "max_position_embeddings", 201)  # a model without a limit has no such setting
n = min(100, config.vocab_size, (longest - 1) // 2)  # random tokens, all different, and then the same again
torch.manual_seed(0)
drawn = torch.stack([torch.randperm(config.vocab_size)[:n] for _ in range(8)])
start = torch.full((8, 1), config.bos_token_id or 0)  # or any token, for a model without a start token
tokens = torch.cat([start, drawn, drawn], dim=1)
with torch.no_grad():
    out = model(tokens, output_attentions=True)
loss = torch.nn.functional.cross_entropy(out.logits[:, :-1].float().mT, tokens[:, 1:], reduction="none")
first, second = loss[:, :n].mean(), loss[:, n + 1 :].mean()
guess = math.log(config.vocab_size)
print(f"loss: {first:.2f} in the first copy, {second:.2f} in the second; a uniform guess {guess:.2f}")
# From each token of the second copy, the attention to the token after its first occurrence.
scores = torch.stack([A.diagonal(1 - n, -2, -1)[..., 2:].mean(dim=(0, 2)) for A in out.attentions])  # [layer, head]
for layer, head in (scores >= 0.3).nonzero().tolist():
    print(f"head {layer}.{head}: {scores[layer, head]:.0%} of its attention")
best, even = scores.max(), math.log(2) / n  # the mean of one over n to 2n sources
print(f"{(scores >= 0.3).sum()} induction heads; the best score is {best:.2f}, even attention would give {even:.2f}")
