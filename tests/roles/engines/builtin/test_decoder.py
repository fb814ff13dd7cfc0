import pytest
import torch

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.batching import decode
from roles.engines.builtin.decoder import Decoder
from roles.engines.sampling.gumbel_noise import Draws, NoiseSource

EQUAL = [[2, 3, 4, 5], [7, 8, 9, 10], [6, 6, 6, 6]]
UNEQUAL = [[2, 3, 4, 5], [7], [6] * 9, [11, 12]]
SOURCE = NoiseSource(32, "cpu")


@pytest.fixture(scope="module")
def model(tiny_config):
    torch.manual_seed(3)
    return build_model(configuration("qwen2", tiny_config), torch.float32, "cpu")


def silent(rows, positions):
    return None


seeded = SOURCE.at


@torch.no_grad()
def hugging_face(model, prompt, tokens):
    """Return states and log-probabilities of ``tokens`` by one unpadded, uncached forward pass."""
    states = model.model(input_ids=torch.tensor([prompt + tokens[:-1]])).last_hidden_state[0]
    states = states[len(prompt) - 1 :]
    chosen = torch.tensor(tokens)[:, None]
    return states, model.lm_head(states).log_softmax(-1).gather(1, chosen)[:, 0]


@pytest.mark.parametrize("prompts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("noise", [silent, seeded], ids=["greedy", "sampled"])
def test_decoding_equals_hugging_face(model, prompts, noise):
    decoder = Decoder(model.config, tensors_of(model))
    decoded = decode(decoder, prompts, [24] * len(prompts), 1.0, noise)
    for prompt, row in zip(prompts, decoded, strict=True):
        states, logprobs = hugging_face(model, prompt, row.tokens.tolist())
        torch.testing.assert_close(row.states, states, atol=1e-5, rtol=0)
        torch.testing.assert_close(row.logprobs, logprobs, atol=1e-5, rtol=0)


def test_greedy_tokens_are_the_most_probable(model):
    decoder = Decoder(model.config, tensors_of(model))
    for prompt, row in zip(UNEQUAL, decode(decoder, UNEQUAL, [9] * 4, 1.0, silent), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + row.tokens.tolist()])).logits[0]
        best = logits[len(prompt) - 1 : -1].argmax(-1)
        assert torch.equal(row.tokens, best)


def test_other_layouts_of_heads(tiny_config):
    for heads in ({"num_key_value_heads": 4}, {"num_key_value_heads": 1}):
        model = build_model(configuration("qwen2", tiny_config | heads), torch.float32, "cpu")
        decoder = Decoder(model.config, tensors_of(model))
        row = decode(decoder, [[5, 6, 7]], [6], 1.0, silent)[0]
        states, _ = hugging_face(model, [5, 6, 7], row.tokens.tolist())
        torch.testing.assert_close(row.states, states, atol=1e-5, rtol=0)


def test_a_tied_output_layer_decodes(tiny_config):
    config = configuration("qwen2", tiny_config | {"tie_word_embeddings": True})
    model = build_model(config, torch.float32, "cpu")
    row = decode(Decoder(config, tensors_of(model)), [[5, 6, 7]], [6], 1.0, silent)[0]
    _, logprobs = hugging_face(model, [5, 6, 7], row.tokens.tolist())
    torch.testing.assert_close(row.logprobs, logprobs, atol=1e-5, rtol=0)


def test_bf16_states_stay_near_hugging_face(tiny_config):
    model = build_model(configuration("qwen2", tiny_config), torch.bfloat16, "cpu")
    decoder = Decoder(model.config, tensors_of(model), torch.bfloat16)
    row = decode(decoder, [[5, 6, 7]], [16], 1.0, silent)[0]
    states, _ = hugging_face(model, [5, 6, 7], row.tokens.tolist())
    error = (row.states.float() - states.float()).norm() / states.float().norm()
    assert row.states.dtype == torch.bfloat16
    assert error < 0.02


class Forced(Draws):
    """Draws whose ``keys[n]`` are tokens: each has the most noise there is, others the least."""

    def bits(self, block):
        return torch.where(self.tokens[block] == self.keys, 0, -1).int()


def forced(tokens):
    """Return noise that makes row ``r`` emit ``tokens[r][position]``."""

    def noise(rows, positions):
        places = zip(rows.tolist(), positions.tolist(), strict=True)
        wanted = torch.tensor([tokens[row][position] for row, position in places])
        return Forced(torch.arange(32), wanted[:, None])

    return noise


@pytest.mark.parametrize("prompts", [EQUAL, UNEQUAL[:3]], ids=["equal", "unequal"])
def test_rows_end_at_their_end_token_or_their_limit(model, prompts):
    wanted = [[4, 1, 9, 9, 9], [5, 6, 7, 8, 9], [5, 5, 5, 1, 9]]
    decoder = Decoder(model.config, tensors_of(model))
    decoded = decode(decoder, prompts, [5, 3, 5], 1.0, forced(wanted))
    assert [row.tokens.tolist() for row in decoded] == [[4, 1], [5, 6, 7], [5, 5, 5, 1]]
    assert [len(row.states) for row in decoded] == [len(row.logprobs) for row in decoded]
    for prompt, row in zip(prompts, decoded, strict=True):
        states, _ = hugging_face(model, prompt, row.tokens.tolist())
        torch.testing.assert_close(row.states, states, atol=1e-5, rtol=0)


def test_temperature_flattens_the_distribution(model):
    decoder = Decoder(model.config, tensors_of(model))
    hot, cold = (decode(decoder, EQUAL, [1] * 3, t, silent) for t in (4.0, 0.25))
    assert all(h.logprobs[0] < c.logprobs[0] for h, c in zip(hot, cold, strict=True))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("sequences", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_states_of_whole_sequences_equal_hugging_face(model, sequences, streamed):
    decoder = Decoder(model.config, tensors_of(model), streamed=streamed)
    for sequence, states in zip(sequences, decoder.states(sequences), strict=True):
        with torch.no_grad():
            expected = model.model(input_ids=torch.tensor([sequence])).last_hidden_state[0]
        torch.testing.assert_close(states, expected, atol=1e-5, rtol=0)
