"""Wrong commands, and what each prints on stderr: the table of test_mistakes.py."""

from __future__ import annotations

FORMS = "a .parquet, .jsonl or .json file, a folder or pattern of them, a hub id such as org/name, arith, or sums"
BENCHES = (
    "known: aime24, aime25, aime26, amc, minerva, olympiad, math500, gsm8k, arith, all; "
    "--bench-file adds your own, and a data file may stand here"
)
PRESETS = "presets: demo, qwen3-4b, qwen3-8b, smollm2-135m"

FILES = {
    "syntax.yaml": "run:\n  steps: 3\n bad: [\n",
    "twice.yaml": "defaults: demo\nrun:\n  steps: 3\n  steps: 4\n",
    "binary.yaml": "\x01\x02",
    "list.yaml": "- a\n- b\n",
    "type.yaml": "defaults: demo\ntrain:\n  lr: fast\n",
    "base.yaml": "defaults: [demoo]\n",
    "circle.yaml": "defaults: [circle.yaml]\n",
    "columns.jsonl": '{"question": "1+1", "result": "2"}\n',
    "broken.jsonl": '{"problem": "1+1", "answer": "2"}\n{"problem": "1+2", "answer": \n',
    "empty.jsonl": "",
    "gpt2/config.json": '{"architectures": ["GPT2LMHeadModel"]}',
    "no_model/readme.txt": "",
    "runs/mine/notes.txt": "not a run",
    "taken/file": "",
}

CONFIG = {
    # keys and values
    "train -c demo train.lrr=1": """
        error: unknown config key 'train.lrr'
          at: train.lrr=1 on the command line
          fix: did you mean train.lr?""",
    "train -c demo lamda=2": """
        error: unknown config key 'lamda'
          at: lamda=2 on the command line
          fix: did you mean lambda?""",
    "train -c demo --algo da3op": """
        error: unknown algorithm 'da3op'
          at: --algo
          fix: did you mean da3po? one of da3po, dapo, grpo, gspo, dr_grpo""",
    "train -c demo algo=gspo": """
        error: algo is a section, not a key
          at: algo=gspo on the command line
          fix: write algo.name=gspo""",
    "train -c demo train.lr": """
        error: 'train.lr' is not key=value
          at: command line
          fix: write train.lr=value""",
    "train -c demo train.lr=fast": """
        error: train.lr=fast: must be a number
          at: train.lr=fast on the command line
          fix: write a value such as train.lr=1e-06""",
    "train -c demo run.seed=1,2": """
        error: run.seed=1,2: must be a whole number
          at: run.seed=1,2 on the command line
          fix: write a value such as run.seed=0""",
    "train -c demo data.validation=None": """
        error: data.validation=None: write null for no value
          at: data.validation=None on the command line
          fix: write data.validation=null""",
    "train -c demo run.tensorboard=None": """
        error: run.tensorboard=None: must be true or false
          at: run.tensorboard=None on the command line
          fix: write a value such as run.tensorboard=true""",
    "train -c demo algo.tis=of": """
        error: algo.tis=of: must be one of auto, on, off; did you mean off?
          at: algo.tis=of on the command line
          fix: write a value such as algo.tis=auto""",
    # numbers that make no sense
    "train -c demo --lambda 0": """
        error: lambda=0.0 must be above 0
          at: algo.daa_lambda, set by --lambda
          fix: --lambda 2.0, or 1.0 for off""",
    "train -c demo --lambda=-1": """
        error: lambda=-1.0 must be above 0
          at: algo.daa_lambda, set by --lambda
          fix: --lambda 2.0, or 1.0 for off""",
    "train -c demo --lambda nan": """
        error: algo.daa_lambda=nan: must be a finite number
          at: --lambda
          fix: write a value such as --lambda 2.0""",
    "train -c demo --steps 0": """
        error: run.steps=0 must be at least 1
          at: run.steps, set by --steps
          fix: run.steps=1 or more""",
    "train -c demo --seed=-1": """
        error: run.seed=-1 is not in [0, 2^32), as numpy wants it
          at: run.seed, set by --seed
          fix: run.seed=0""",
    "train -c demo parallel.data=0": """
        error: parallel.data=0 must be at least 1
          at: parallel.data=0 on the command line
          fix: parallel.data=1 or more""",
    "train -c demo rollout.group_size=1": """
        error: rollout.group_size=1: a group of one has no advantage, its mean is its reward
          at: rollout.group_size=1 on the command line
          fix: rollout.group_size=2 or more (the paper uses 16)""",
    "train -c demo rollout.prompts=32 train.mini_batch_prompts=12": """
        error: rollout.prompts=32 is not a multiple of train.mini_batch_prompts=12
          at: train.mini_batch_prompts=12 on the command line
          fix: train.mini_batch_prompts=8 or rollout.prompts=36""",
    "train -c demo rollout.temperature=0": """
        error: rollout.temperature=0.0 gives 8 equal responses and no log-probs
          at: rollout.temperature=0 on the command line
          fix: rollout.temperature=1.0""",
    "train -c demo rollout.max_tokens=9999": """
        error: data.max_prompt_tokens=64 + rollout.max_tokens=9999 is above the model's 512 positions
          at: rollout.max_tokens=9999 on the command line
          fix: rollout.max_tokens=448 or less""",
    "train -c demo algo.overlong_cache=500": """
        error: algo.overlong_cache=500 is not below rollout.max_tokens=96
          at: algo.overlong_cache=500 on the command line
          fix: algo.overlong_cache=19 (a fifth, as in DAPO), or 0 for off""",
    "train -c demo checkpoint.before=soon": """
        error: checkpoint.before: 'soon' is not HH:MM or HH:MM:SS
          at: checkpoint.before=soon on the command line
          fix: checkpoint.before=23:30 is 23 hours and a half; in a YAML file put it in quotes""",
    # layouts
    "train -c demo parallel.tensor=3": """
        error: parallel.tensor=3 does not divide the model's 4 attention heads or 2 key-value heads
          at: parallel.tensor=3 on the command line
          fix: parallel.tensor= one of 1, 2, 4""",
    "train -c demo parallel.pipeline=9": """
        error: parallel.pipeline=9 x parallel.virtual_pipeline=1 are more stages than the model's 4 layers
          at: parallel.pipeline=9 on the command line
          fix: parallel.pipeline=4 or less""",
    "train -c demo parallel.data=4 rollout.tensor=8": """
        error: rollout.tensor=8 does not divide the 4 ranks
          at: rollout.tensor=8 on the command line
          fix: rollout.tensor= one of 1, 2, 4
        error: rollout.tensor=8 does not divide the model's 4 attention heads
          at: rollout.tensor=8 on the command line
          fix: rollout.tensor= one of 1, 2, 4""",
    "train -c demo model.dtype=bfloat16 fp8.format=hybrid": """
        error: fp8.recipe=tensorwise needs a CUDA device of compute capability 8.9, and this is a CPU
          at: fp8.format=hybrid on the command line
          fix: fp8.format=none""",
    # files of configs
    "train -c dem": f"""
        error: no config called 'dem': neither a file nor a shipped preset
          at: --config
          fix: did you mean demo? {PRESETS}""",
    "train -c syntax.yaml": """
        error: not YAML: expected <block end>, but found '<block mapping start>'
          at: syntax.yaml:3
          fix: mend that line: its indentation, colons, quotes""",
    "train -c binary.yaml": """
        error: not YAML: unacceptable character #x0001: special characters are not allowed
          at: binary.yaml
          fix: mend that line: its indentation, colons, quotes""",
    "train -c twice.yaml": """
        error: run.steps is given twice
          at: twice.yaml:4 run.steps
          fix: keep one of the two""",
    "train -c list.yaml": """
        error: a config file holds `section:` blocks
          at: list.yaml:1
          fix: see configs/""",
    "train -c type.yaml": """
        error: train.lr=fast: must be a number
          at: type.yaml:3 train.lr
          fix: write a value such as train.lr=1e-06""",
    "train -c base.yaml": f"""
        error: no config called 'demoo': neither a file nor a shipped preset
          at: base.yaml defaults
          fix: did you mean demo? {PRESETS}""",
    "train -c circle.yaml": """
        error: circle.yaml is its own default
          at: circle.yaml defaults
          fix: break the circle""",
    "DA3PO_CONFIG=dem train": f"""
        no --config: using DA3PO_CONFIG=dem
        error: no config called 'dem': neither a file nor a shipped preset
          at: DA3PO_CONFIG
          fix: did you mean demo? {PRESETS}""",
    "DA3PO_TRAIN__LR=abc train -c demo": """
        error: train.lr=abc: must be a number
          at: environment DA3PO_TRAIN__LR
          fix: write a value such as train.lr=1e-06""",
    "DA3PO_TRAIN_LR=1e-6 train -c demo": """
        error: DA3PO_TRAIN_LR sets nothing
          at: environment DA3PO_TRAIN_LR
          fix: write DA3PO_TRAIN__LR""",
    "DA3PO_RUN=/scratch train -c demo": """
        error: DA3PO_RUN sets nothing
          at: environment DA3PO_RUN
          fix: did you mean DA3PO_RUNS?""",
    # models, data, rewards, benchmarks
    "train -c demo --model nowhere": """
        error: model directory not found: 'nowhere'
          at: model.path, set by --model
          fix: --model DIR with a Hugging Face checkpoint, a hub id such as Qwen/Qwen3-4B-Base, or demo""",
    "train -c demo --model '~nobody/model'": """
        error: model directory not found: '~nobody/model'
          at: model.path, set by --model
          fix: --model DIR with a Hugging Face checkpoint, a hub id such as Qwen/Qwen3-4B-Base, or demo""",
    "train -c demo model.path=": """
        error: model.path=: must be text, not null
          at: model.path= on the command line
          fix: write model.path=VALUE""",
    "train -c demo --model no_model": """
        error: no config.json in the model directory no_model
          at: model.path, set by --model
          fix: --model must name a Hugging Face checkpoint: config.json, tokenizer and *.safetensors""",
    "train -c demo --model gpt2": """
        error: unsupported architecture GPT2LMHeadModel in gpt2/config.json
          at: model.path, set by --model
          fix: --model with one of Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM""",
    "train -c demo reward.name=math --dataset nowhere.jsonl": f"""
        error: data file not found: 'nowhere.jsonl'
          at: data.train, set by --dataset
          fix: --dataset {FORMS}""",
    "train -c demo reward.name=math --dataset no_model": f"""
        error: no data file in the folder no_model: it has no .parquet, .jsonl, .json
          at: data.train, set by --dataset
          fix: --dataset {FORMS}""",
    "train -c demo reward.name=math --dataset columns.jsonl": """
        error: no answer column (reward_model.ground_truth, answer, ground_truth, final_answer, expected_answer, \
solution_answer, gold, label, solution); found: question, result
          at: columns.jsonl
          fix: set data.answer_key=COLUMN""",
    "train -c demo reward.name=math --dataset broken.jsonl": """
        error: not valid JSON: Expecting value: line 2 column 1 (char 30)
          at: broken.jsonl:2
          fix: one JSON object per line""",
    "train -c demo reward.name=math --dataset empty.jsonl": """
        error: empty.jsonl has no rows
          at: empty.jsonl
          fix: another file""",
    "train -c demo reward.name=maths": """
        error: reward.name: no reward named 'maths'
          at: reward.name=maths on the command line
          fix: one of math, arith, dapo, or an import path package.module:function""",
    "train -c demo validation.benches=aime99": f"""
        error: no benchmark called 'aime99'
          at: validation.benches=aime99 on the command line
          fix: did you mean aime26? {BENCHES}""",
    "train -c demo data.template=caht": """
        error: no template called 'caht'
          at: data.template=caht on the command line
          fix: did you mean chat? one of chat, dapo, boxed, none, or the path of a .jinja or .j2 file""",
    # run directories
    "train -c demo --name mine": """
        error: the run directory runs/mine is in use
          at: run.name
          fix: --resume to go on with it, --overwrite to start it anew, or another name: --name mine-2""",
    "train -c demo --name mine --overwrite": """
        error: runs/mine holds no run.json, so it is not a run and will not be overwritten
          at: --overwrite
          fix: another --name, or remove it by hand""",
    "train -c demo --name ../up": """
        error: '../up' cannot name a run
          at: run.name, set by --name
          fix: --name of letters, digits and . _ + - only, 128 at most""",
    f"train -c demo --name {'x' * 300}": f"""
        error: '{"x" * 300}' cannot name a run
          at: run.name, set by --name
          fix: --name of letters, digits and . _ + - only, 128 at most""",
    "train -c demo --resume --name nosuch": """
        error: no run to resume in runs/nosuch
          at: --resume
          fix: --name of an existing run, or no --resume""",
    "train -c demo --resume=last": """
        error: --resume=last is no step
          at: --resume
          fix: --resume, or --resume=STEP""",
    "train -c demo --resume --overwrite --name saved": """
        error: --resume and --overwrite exclude each other
          at: command line
          fix: give one""",
    "train -c demo --resume=7 --name saved": """
        error: runs/saved has no checkpoint of step 7
          at: --resume
          fix: --resume, or --resume= one of 20""",
    "train -c demo --replay-rollouts taken": """
        error: taken holds no step_N.jsonl
          at: --replay-rollouts
          fix: --replay-rollouts runs/NAME, of a run with run.save_rollouts=true""",
}

OTHERS = {
    # the command line itself
    "trian": """
        error: no such command 'trian'
          at: da3po
          fix: did you mean 'train'?""",
    "train --stpes 3": """
        error: no such option: --stpes
          at: da3po train
          fix: did you mean --steps? see da3po train -h""",
    "train --steps three": """
        error: --steps three: not a whole number
          at: da3po train
          fix: --steps takes a whole number; see da3po train -h""",
    "train --steps": """
        error: option '--steps' requires an argument
          at: da3po train
          fix: da3po train -h""",
    "export saved out --dtype fp16": """
        error: --dtype fp16: not one of source, bf16, fp32
          at: da3po export
          fix: --dtype takes one of source, bf16, fp32; see da3po export -h""",
    "export saved": """
        error: missing argument 'OUT'
          at: da3po export
          fix: da3po export -h""",
    # the other commands
    "export nosuch out": """
        error: no run called 'nosuch'
          at: run
          fix: runs in runs: saved""",
    "export saved@7 out": """
        error: no checkpoint of step 7 (steps saved: 20)
          at: runs/saved/checkpoints
          fix: name one of these steps; a new run starts with --overwrite or another --name""",
    "export saved taken": """
        error: taken exists
          at: OUT
          fix: give a new directory, or remove it""",
    "runs show saved --step 7": """
        error: saved has no metrics of step 7
          at: runs/saved/metrics.jsonl
          fix: none""",
    "eval --bench aime99": f"""
        error: no benchmark called 'aime99'
          at: --bench
          fix: did you mean aime26? {BENCHES}""",
    "eval --bench arith --model nosuch": """
        error: 'nosuch' is no model: no directory with a config.json, no hub id, and no run called 'nosuch'
          at: --model
          fix: runs in runs: saved""",
    "eval --bench arith --model demo --k 0": """
        error: --k 0 must be at least 1
          at: --k
          fix: --k 1 or more""",
    "eval compare a.json b.json": """
        error: no such file: a.json
          at: eval compare
          fix: da3po eval --out FILE writes one""",
    "grade nosuch.jsonl": """
        error: file not found: 'nosuch.jsonl'
          at: FILE.jsonl
          fix: lines of {gold, response}""",
    "grade columns.jsonl": """
        error: no gold and no response; found question, result
          at: columns.jsonl:1
          fix: {gold, response}""",
    "theory --group 1": """
        error: '1' is no group size
          at: --group
          fix: whole numbers from 2 to 4096: 4,8,16""",
    "ablate -c demo": """
        error: nothing to compare
          at: da3po ablate
          fix: --param lambda=1.0,1.5,2.0 or --algos grpo,dapo,da3po""",
    "ablate -c demo --param lambda=": """
        error: an empty value in ''
          at: --param lambda
          fix: values with commas between: 1.0,2.0""",
    "ablate -c demo --param lambda=1,2 --resume --overwrite": """
        error: --resume and --overwrite exclude each other
          at: command line
          fix: give one""",
    "ablate -c demo --param lambda=1,2 --gate 'lambda=3 > 0'": """
        error: the gate 'lambda=3 > 0' needs an arm or a number at 'lambda=3 > 0'
          at: --gate
          fix: arms: lambda=1, lambda=2; such as --gate 'lambda=1 > 0.5'""",
    "plan -c qwen3-4b --gpus 0": """
        error: --gpus 0: not a number of at least 1
          at: da3po plan
          fix: --gpus takes a number of at least 1; see da3po plan -h""",
    "plan -c demo --gpu-memory 80": """
        error: --gpu-memory 80 without a GPU to plan for
          at: --gpu-memory
          fix: --gpus N""",
    "doctor -c demo train.lrr=1": """
        error: unknown config key 'train.lrr'
          at: train.lrr=1 on the command line
          fix: did you mean train.lr?""",
}
