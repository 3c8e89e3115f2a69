"""Every field of a run with its default. Other configs start from this one and change a few lines.

An override on the command line names the same path: `--config.model.num_layers=4`.
0 or '' stands for "absent" where a field says so. Options of a kind live in a section named after
the kind and are ignored unless that kind is selected.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    c = ConfigDict()
    c.seed = 0  # parameters, dropout, and the data unless data.seed says otherwise
    c.compute_dtype = "float32"  # of activations: float32 | bfloat16; parameters are float32
    c.model = model()
    c.objective = objective()
    c.data = data()
    c.optimizer = optimizer()
    c.schedule = schedule()
    c.train = train()
    c.eval = evaluation()
    c.mesh = mesh()
    return c


def model() -> ConfigDict:
    m = ConfigDict()
    m.architecture = "decoder"  # decoder | encoder | encoder_decoder | lstm (a baseline)
    m.num_layers = 2  # of an encoder_decoder: the decoder's
    m.num_encoder_layers = 0  # encoder_decoder only: 0 = num_layers
    m.d_model = 64  # width of the residual stream
    m.num_heads = 4  # query heads
    m.num_kv_heads = 0  # key/value heads: 0 = num_heads, 1 = multi-query, between = grouped
    m.head_dim = 0  # 0 = d_model / num_heads
    m.d_ff = 0  # width of the feed-forward hidden layer: 0 = 4 * d_model
    m.vocab_size = 0  # 0 = the tokenizer's
    m.max_length = 64  # most tokens a sequence may have: size of a learned position table
    m.activation = "gelu"  # relu | gelu (tanh) | gelu_exact | silu | reglu | geglu | swiglu
    m.norm = "layernorm"  # layernorm | rmsnorm
    m.norm_placement = "pre"  # pre | post | sandwich | none
    m.final_norm = "auto"  # norm after the last layer: auto (pre and sandwich) | true | false
    m.norm_epsilon = 1e-5
    m.embedding_norm = False  # a norm after the embeddings, before the first layer (BERT, BART)
    m.residual = True  # residual connections; false is an ablation
    m.attention_bias = True  # biases of the query, key and value projections
    m.attention_output_bias = True
    m.feed_forward_bias = True
    m.head_bias = False  # bias of the vocabulary logits
    m.scale_attention = True  # divide attention logits by sqrt(head dim)
    m.qk_norm = False  # RMSNorm of each head's queries and keys, before positions
    m.attention_softcap = 0.0  # c tanh(logits / c) on attention logits: 0 = none
    m.logit_softcap = 0.0  # the same on the vocabulary logits
    m.attention_sink = False  # a learned logit a head that takes weight and gives nothing
    # Attention is computed by platform and shape, or by a kernel; what it cannot do another does:
    # auto | reference | chunked | blockwise | cudnn (GPU, bf16) | splash (TPU): docs/kernels.md
    m.attention_kernel = "auto"
    m.window = 0  # attend to tokens fewer than this many away, itself included: 0 = all
    m.layer_pattern = ""  # layers that differ, repeated, e.g. 'rope:window=256 x3, none'
    m.tie_embeddings = True  # the head uses the transposed embedding table
    m.share_embeddings = True  # encoder_decoder: one table for source and target
    m.scale_embeddings = False  # multiply token embeddings by sqrt(d_model), Vaswani 2017 §3.4
    m.scale_logits = False  # divide the head's input by sqrt(d_model) (T5, where it is tied)
    m.initializer = "gpt2"  # gpt2 | bert | xavier | t5 | lecun: see nn/parameters.py
    m.scan_layers = False  # stack the layers and scan over them: compiles faster, same numbers
    m.remat = "none"  # recompute in the backward pass: none | full | dots (keep linear outputs)
    # Positions of each row that have logits at a time in losses, made again for gradients, so that
    # there are never [B, L, V]: 0 = all at once, which is faster
    m.logit_chunk = 0
    m.layernorm = ConfigDict({"bias": True})
    m.patches = ConfigDict()  # an encoder of images: square patches of pixels instead of tokens
    m.patches.image_size = 0  # pixels of a side: 0 = the input is tokens
    m.patches.patch_size = 0  # of a patch's side, which divides it
    m.patches.channels = 3
    m.head = ConfigDict()
    m.head.kind = "vocabulary"  # vocabulary | encoders: sequence, token (classification)
    m.head.transform = False  # linear, activation and norm before the logits (BERT's MLM head)
    m.head.num_classes = 0  # sequence, token: 0 = the data's
    m.head.pooling = "first"  # sequence: first | mean
    m.head.pooler = True  # sequence: linear and tanh before the classes (BERT); false: none (ViT)
    m.dropout = ConfigDict()
    m.dropout.embedding = 0.0  # on the sum of token and position embeddings
    m.dropout.attention = 0.0  # on attention weights
    m.dropout.feed_forward = 0.0  # on the feed-forward hidden layer
    m.dropout.residual = (
        0.0  # on what each sublayer adds to the residual stream; lstm: on what a layer gives
    )
    m.moe = experts()
    m.position = ConfigDict()
    # none | sinusoidal | learned | rope | xpos | alibi | learned_alibi | hard_alibi | t5 |
    # kerple_log | kerple_power | fire | sandwich | shaw | cope | your own: module:Class
    m.position.kind = "learned"
    m.position.options = ""  # for one of your own, which reads it from cfg.position.options
    m.position.source = position_source()
    # With any kind: queries at n > L tokens are multiplied by ln n / ln L; L, e.g. the training
    # length; 0: they are not
    m.position.logn_length = 0
    m.position.sinusoidal = ConfigDict()
    m.position.sinusoidal.base = 10000.0
    m.position.sinusoidal.layout = "interleaved"  # sin, cos, sin, … | concatenated: sin…, cos…
    m.position.sinusoidal.scale = 1.0  # multiplies the encoding before it is added
    m.position.rope = ConfigDict()  # of rope and xpos
    m.position.rope.base = 10000.0
    m.position.rope.layout = "half"  # half: pairs (m, m + d/2), Llama | interleaved: (2m, 2m + 1)
    m.position.rope.fraction = 1.0  # share of each head's dimensions that is rotated
    m.position.rope.keep = 1.0  # share of highest frequencies kept, the rest 0 (p-RoPE): 0 = none
    m.position.rope.scaling = rope_scaling()
    m.position.xpos = ConfigDict()
    m.position.xpos.gamma = 0.4  # the less, the more the fastest pair decays
    m.position.xpos.scale_base = 512.0  # tokens in which it decays by gamma / (1 + gamma)
    m.position.hard_alibi = ConfigDict()
    m.position.hard_alibi.heads = 0  # that see 1, 2, 3, … tokens: 0 = half of them
    m.position.t5 = ConfigDict()
    m.position.t5.num_buckets = 32  # of distances; in encoders half of them on each side
    m.position.t5.max_distance = 128  # from here on one bucket
    m.position.fire = ConfigDict()
    m.position.fire.init_length = 512.0  # distances are relative to this length, times a trained 1
    m.position.fire.width = 32  # of the hidden layer
    m.position.sandwich = ConfigDict()
    m.position.sandwich.width = 128  # of the sinusoidal vectors whose products are the biases
    m.position.shaw = ConfigDict()
    m.position.shaw.max_distance = 16  # from here on one vector
    m.position.shaw.on_values = False  # vectors for values too, not only for keys
    m.position.cope = ConfigDict()
    m.position.cope.num_positions = 64  # counts stop at this many less 1
    return m


def experts() -> ConfigDict:
    """Feed-forward layers as mixtures of experts: docs/moe.md."""
    s = ConfigDict()
    s.num_experts = 0  # 0 = none: plain feed-forward layers
    s.top_k = 2  # experts of each token
    s.every = 1  # every n-th layer has experts, the others d_ff
    s.d_ff = 0  # hidden width of each expert: 0 = model.d_ff's
    s.shared_d_ff = 0  # hidden width of one more expert, which every token has: 0 = none
    # Of training: an expert takes at most capacity_factor · top_k · length / num_experts tokens of
    # a row, the first ones; the rest are dropped. 0 = all it is given, as in evaluation
    s.capacity_factor = 0.0
    s.normalize_top_k = True  # weights of a token's experts sum to 1; false: as the softmax has it
    s.balance_weight = 0.01  # of the load-balancing loss: 0 = none
    s.balance_over = "batch"  # its means: over a (micro)batch | row: over each row, exact if split
    s.z_weight = 0.0  # of logsumexp(router logits)²: 0 = none
    s.jitter = 0.0  # training: the router's input is multiplied by 1 ± up to this
    return s


def position_source() -> ConfigDict:
    """Which id a token has; the draws of training are new in every step."""
    s = ConfigDict()
    # 0, 1, 2, …; from a random start in training; sorted random ids; sorted random reals; place of
    # a digit in a number; as a task couples tokens, from a random start in training:
    # contiguous | offset | randomized | random_float | abacus | coupled
    s.kind = "contiguous"
    # offset, randomized, random_float, coupled: positions are below range: 0 = model.max_length
    s.range = 0
    s.random_float = ConfigDict()
    s.random_float.steps = 64  # ids to a position: a power of two
    s.abacus = ConfigDict()
    s.abacus.max_offset = 99  # training adds up to this to a document's ids of digits
    s.abacus.digits = ()  # token ids of the digits: () = the tokenizer's
    return s


def rope_scaling() -> ConfigDict:
    s = ConfigDict()
    # none | linear (position interpolation) | ntk | dynamic_ntk | ntk_by_parts | yarn | llama3
    s.kind = "none"
    s.factor = 1.0  # how many times longer than in training; dynamic_ntk sees the length itself
    # dynamic_ntk, ntk_by_parts, yarn, llama3: the training length: 0 = model.max_length
    s.original_length = 0
    s.dynamic_ntk = ConfigDict({"alpha": 1.0})
    s.ntk_by_parts = ConfigDict()
    s.ntk_by_parts.beta_fast = 32.0  # pairs that turn more often than this stay as they are,
    s.ntk_by_parts.beta_slow = 1.0  # … less often: are interpolated
    s.yarn = ConfigDict()
    s.yarn.beta_fast = 32.0  # the same
    s.yarn.beta_slow = 1.0
    s.yarn.temperature = 0.0  # multiplies rotated queries and keys: 0 = 0.1 ln factor + 1
    s.llama3 = ConfigDict()
    s.llama3.low_frequency_factor = 1.0  # pairs that turn less often are interpolated,
    s.llama3.high_frequency_factor = 4.0  # … more often: stay as they are
    return s


def objective() -> ConfigDict:
    o = ConfigDict()
    # causal_lm | prefix_lm | masked_lm | seq2seq | span_corruption | sequence_classification |
    o.kind = "causal_lm"  # token_classification
    o.label_smoothing = 0.0  # weight taken from the target and spread evenly …
    o.smoothing = "all"  # all classes, the target included: ε / V | others: ε / (V - 1)
    o.z_loss = 0.0  # weight of logsumexp(logits)²
    o.distillation = ConfigDict()  # learn a trained model's probabilities besides the targets
    # the --workdir of its run, or hf:PATH; of the same objective and vocabulary: '' = no teacher
    o.distillation.teacher = ""
    o.distillation.alpha = 0.5  # (1 - alpha) cross-entropy + alpha T² KL(teacher || student) …
    o.distillation.temperature = 2.0  # … of probabilities whose logits are divided by this T
    o.span_corruption = ConfigDict()
    o.span_corruption.rate = 0.15  # share of a window's tokens that are hidden,
    o.span_corruption.length = 3.0  # in spans of this many on average
    o.span_corruption.sentinels = 100  # <extra_id_0> … at the end of vocabularies made here
    o.masked_lm = ConfigDict()
    o.masked_lm.rate = 0.15  # share of a row's tokens that are predicted …
    o.masked_lm.mask = 0.8  # … this share of them hidden behind <mask>,
    o.masked_lm.random = 0.1  # this share replaced by a random token, the rest kept
    return o


def data() -> ConfigDict:
    d = ConfigDict()
    # made, not read: agreement | task; text | jsonl | csv | tsv | parquet | folder | hub; or images
    d.source = "agreement"
    # File, glob, folder or hub name; tasks have none, but scan is in a folder. images: a FILE.npz
    # with images [N, H, W(, C)] and labels [N], or digits, which scikit-learn has
    d.path = ""
    d.mixture = ConfigDict()  # several sources of one kind instead of data.path
    d.mixture.paths = ()  # each as data.path may name it, e.g. ('a.jsonl', 'b/*.jsonl')
    d.mixture.weights = ()  # share of rows of each, e.g. (2.0, 1.0): () = as many as it has
    # An epoch ends when every source was read once, the others as often as needed, or when the
    # first one is used up: repeat | stop
    d.mixture.end = "repeat"
    d.streaming = False  # documents are read and tokenised while training: see docs/data.md
    d.stream = ConfigDict()
    d.stream.window = 1000  # documents that are shuffled at a time: 0 = in their order
    d.stream.validation_documents = 0  # first ones of each source, kept: 0 = validation_path
    d.target_path = ""  # seq2seq of two parallel texts (.gz too): line n translates line n of path
    d.validation_path = ""  # validation data of their own: '' = a share of those of path
    d.validation_target_path = ""  # … and their translations
    d.text_field = ""  # column that holds the text, for jsonl, csv, tsv, parquet, hub: '' = text
    d.label_field = ""  # column that holds the class, or as many classes as words: '' = label
    d.source_field = ""  # columns of seq2seq: '' = source
    d.target_field = ""  # '' = target
    d.columns = ""  # names of the columns of csv and tsv, e.g. 'text,label': '' = the first line
    d.pattern = ""  # which files of a folder, e.g. '*.py': '' = *
    # Tokens in a row of a batch: the training context; of seq2seq and span_corruption: the source's
    d.length = 20
    # Of seq2seq: tokens in a row of targets: 0 = length; of span_corruption it is computed: leave 0
    d.target_length = 0
    # Last documents, or the end of a single one; of examples any: 0 = a tenth.
    d.validation_fraction = 0.0
    d.split_seed = 0  # which pairs or labelled examples those are
    d.seed = 0  # order of the data and what is drawn of them: 0 = the run's seed
    d.add_bos = True  # each document starts with <s>; of seq2seq: the source, targets always do
    d.add_eos = True  # each document ends with </s>, likewise
    d.pack = False  # several documents in a row, attention kept apart by segment ids; not for tasks
    d.cache = ""  # folder or URL (gs://…) of tokenised data that runs may share: '' = the workdir
    d.tokenizer = ConfigDict()
    d.tokenizer.kind = "word"  # char | byte | word | bpe (trained here) | file
    d.tokenizer.path = ""  # kind file: a saved Hugging Face tokenizer.json
    d.tokenizer.vocab_size = 0  # kind bpe: size asked for, special tokens included
    d.agreement = ConfigDict()
    d.agreement.num_examples = 20000  # training sentences
    d.agreement.max_modifiers = 3  # training sentences have 0 … this many modifiers,
    d.agreement.modifier_weights = ()  # in these shares, e.g. (0.6, 0.2, 0.1, 0.1): () = equal
    d.task = task()
    return d


def task() -> ConfigDict:
    """With data.source = task. A 0 among the last group: as the task has it."""
    t = ConfigDict()
    t.name = ""  # `python -m jaxformer.data.tasks` lists them
    t.min_length = 1  # training examples have lengths min_length … max_length, uniformly
    t.max_length = 16
    t.num_examples = 0  # training examples, the same in every epoch: 0 = new ones for ever
    t.symbols = 0  # how many there are, of tasks on strings of symbols
    t.modulus = 0  # sum_mod, modular_arithmetic; the cycle of cycle_navigation
    t.brackets = 0  # dyck: kinds of brackets
    t.hints = 0  # addition_hints: letters that may be hints
    t.ignore = 0.0  # flip_flop: share of instructions that change and ask nothing
    t.split = ""  # scan: simple | length | length:N | addprim_jump
    return t


def optimizer() -> ConfigDict:
    o = ConfigDict()
    o.kind = "adamw"  # adamw | adam | muon: layers' kernels by Muon, all else by AdamW
    o.b1 = 0.9
    o.b2 = 0.999
    o.epsilon = 1e-8
    o.weight_decay = 0.01  # decoupled; only kernels and embedding tables, chosen by name
    o.clip_norm = 1.0  # clip gradients to this global norm: 0 = off
    o.muon = ConfigDict()
    o.muon.rate = 10.0  # times the schedule's rate, which is AdamW's: rate of the layers' kernels
    o.muon.weight_decay = 0.01  # of them, decoupled and at their rate; the above is of the rest
    o.muon.momentum = 0.95  # Nesterov's
    o.muon.steps = 5  # of Newton and Schulz
    # An update is scaled by sqrt(max(1, out / in)), or if not 0 by this times sqrt(max(in, out)):
    # 0.2 gives it the size of AdamW's, so that muon.rate = 1 fits (Liu et al. 2025)
    o.muon.rms = 0.0
    return o


def schedule() -> ConfigDict:
    """All kinds rise linearly from init_value to peak_value first; evaluated at step + 1."""
    s = ConfigDict()
    s.kind = "warmup_cosine"  # warmup_cosine | linear | inverse_sqrt (Noam) | wsd | constant
    s.init_value = 0.0
    s.peak_value = 3e-3
    s.warmup_steps = 200
    s.decay_steps = 0  # length of the whole schedule, warmup included: 0 = the run's steps
    s.cooldown_steps = 0  # wsd: last steps, which fall linearly to end_value: 0 = a fifth of all
    s.end_value = 0.0
    return s


def train() -> ConfigDict:
    t = ConfigDict()
    t.num_steps = 0  # the run ends after this many optimizer updates: 0 = no such bound
    t.num_epochs = 8.0  # … or after this many passes over the training rows, whichever is first
    t.batch_size = 64  # rows in a global batch
    t.num_microbatches = 1  # gradients are accumulated over this many parts of a batch
    t.log_every = 50  # steps between lines of metrics.jsonl
    t.eval_every = 500  # steps between evaluations on the validation rows: 0 = only at the end
    t.checkpoint_every = 500  # steps between checkpoints: 0 = only at the end
    t.keep_latest = 2  # newest checkpoints kept
    t.keep_best = 0  # checkpoints of lowest validation loss kept besides
    t.max_skipped_steps = 10  # updates with non-finite gradients in a row before the run stops
    # at step 0: the --workdir of a run whose newest checkpoint gives …, or hf:PATH, a folder of the
    # Hugging Face library (docs/interop.md)
    t.init_from = ""
    t.init_paths = ()  # … the parameters with these paths, e.g. ('embedding/*', 'layers/0/*')
    t.freeze = ()  # parameters that stay as they are, e.g. ('embedding/*',): () = none
    t.check_every = 100  # steps between comparisons of several processes: 0 = only at the start
    t.ema = ConfigDict()  # an exponential moving average of the parameters beside them
    t.ema.decay = 0.0  # of it in each update, e.g. 0.999: 0 = there is none
    t.ema.warmup = True  # at update n min(decay, n / (n + 9)), so that the start is soon forgotten
    t.spike_guard = ConfigDict()  # leave out an update whose gradient norm is an outlier
    t.spike_guard.threshold = 0.0  # standard deviations above the mean of recent norms: 0 = off
    t.spike_guard.decay = 0.99  # of that exponential mean and variance
    t.spike_guard.warmup_steps = 100  # norms seen before the first is judged
    return t


def evaluation() -> ConfigDict:
    e = ConfigDict()
    e.batch_size = 64
    e.weights = "raw"  # parameters evaluated: raw, as they are trained | ema, their average
    e.max_rows = 0  # validation rows used: 0 = all; bits per byte are told of all only
    return e


def mesh() -> ConfigDict:
    """Devices along each axis, one may be -1 (the rest); all 1 is no mesh at all.

    Batch rows are cut along data, fsdp and expert together.
    """
    m = ConfigDict()
    m.data = -1  # batch rows
    m.fsdp = 1  # batch rows, and parameters and optimizer state along d_model
    m.tensor = 1  # heads, d_ff and vocabulary: of parameters, optimizer state and activations
    m.context = 1  # tokens of a sequence: of activations, and of caches
    m.expert = 1  # batch rows, and the experts of model.moe
    return m
