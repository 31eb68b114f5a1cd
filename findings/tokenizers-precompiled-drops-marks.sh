#!/usr/bin/env bash
# tokenizers 0.23.3, sentencepiece 0.2.3
#
# Unigram models of SentencePiece (T5, XLM-R, mBART, ALBERT) carry a table of characters, precompiled_charsmap; in tokenizer.json
# it is the normalizer "Precompiled". Both libraries should make the same text of a text.
#
# tokenizers looks up a letter together with the marks after it (a grapheme of fewer than six bytes). If the table has the
# letter alone, its replacement stands for all of them: the marks are gone. SentencePiece looks up the longest prefix that the
# table has, and keeps what follows. So "½" with a virama, "Ａ" with a shadda, and CR LF are read otherwise, and a model gets
# other tokens than it was trained on.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env"
"$work/env/bin/pip" install --quiet tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cd "$work"
env/bin/python - <<'PY'
import io
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import normalizers

model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["the rain on the stone"] * 9), model_writer=model, vocab_size=40, hard_vocab_limit=False,
    normalization_rule_name="nmt_nfkc", add_dummy_prefix=False, remove_extra_whitespaces=False, minloglevel=2,
)
proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
reference = sentencepiece.SentencePieceNormalizer(model_proto=model.getvalue())
table = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
differ = []
for text in ("plain ½ Ａ", "Ａ\u0651", "½\u094d", "a\r\nb"):
    read = {"sentencepiece": reference.normalize(text).replace("▁", " "), "tokenizers": table.normalize_str(text)}
    print(ascii(text), {name: ascii(value) for name, value in read.items()})
    differ.append(read["sentencepiece"] != read["tokenizers"])
raise SystemExit(0 if differ == [False, True, True, True] else "changed: other texts differ")
PY
echo "as described: the normalizer Precompiled drops marks that SentencePiece keeps"
