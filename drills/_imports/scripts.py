"""Scripts as people start trainings with, each with whether it can be read without running it, or must be refused.

What is right is what bash gives to the programs that a script starts. Those of PowerShell and of Windows' batch, which bash
does not run, have their words written beside them.
"""

from __future__ import annotations

from typing import NamedTuple


class ScriptCase(NamedTuple):
    """A script.

    Attributes:
        name: What it shows.
        text: The script.
        is_read: Whether all of it can be followed; else it is refused, or the unknown values are named.
        suffix: Of its file.
        words: Of the command that trains; None if bash tells.
    """

    name: str
    text: str
    is_read: bool = True
    suffix: str = ".sh"
    words: tuple[str, ...] | None = None


_SD = "accelerate launch --num_cpu_threads_per_process 1 sdxl_train_network.py"
_RATE = "--pretrained_model_name_or_path=/m/sdxl.safetensors --learning_rate 1e-4 --network_dim 8"
_MUSUBI = "python src/musubi_tuner/wan_train_network.py"


def _sd(name: str, text: str, *, is_read: bool = True) -> ScriptCase:
    return ScriptCase(name, text.replace("TRAIN", _SD).replace("RATE", _RATE), is_read)


CASES: tuple[ScriptCase, ...] = (
    # Plain lines and variables.
    _sd("one_line", "TRAIN RATE\n"),
    _sd("continued", "TRAIN \\\n  --learning_rate 1e-4 \\\n  --network_dim=8 \\\n  --xformers\n"),
    _sd("blank_after_backslash", "LR=3e-5\nTRAIN --learning_rate $LR \\\n --network_dim 4\n"),
    _sd("variables", 'LR=1e-4; DIM="8"\nexport OUT=/tmp/out\nTRAIN --learning_rate "$LR" --network_dim ${DIM} --output_dir=$OUT/x\n'),
    _sd("quotes", "TRAIN --network_args \"conv_dim=4\" 'conv_alpha=1' --output_name 'my \"lora\"' --comment \"it's $((1+1))\"\n"),
    _sd("comments", "# --learning_rate 1\nTRAIN RATE # --seed 3\n"),
    _sd("environment_before", "CUDA_VISIBLE_DEVICES=0 HF_HOME=/x TRAIN RATE\n"),
    _sd("output_to_a_file", "TRAIN RATE > log.txt 2>&1\nTRAIN --seed 2 | tee log.txt\n"),
    _sd("in_the_background", "nohup TRAIN RATE &\nwait\n"),
    _sd("after_a_folder", "mkdir -p out && cd out && TRAIN RATE\n"),
    _sd("appended_text", 'EXTRA="--seed 1"\nEXTRA="$EXTRA --xformers"\nEXTRA+=" --network_dim 4"\nTRAIN $EXTRA\n'),
    _sd("appended_to_nothing", 'EXTRA="$EXTRA --xformers"\nTRAIN $EXTRA\n'),
    _sd("empty_variable", 'REG=""\nTRAIN RATE $REG\n'),
    _sd("split_by_the_shell", 'A="--network_args conv_dim=4 \'conv alpha=1\'"\nTRAIN $A\n'),
    # Arrays.
    _sd("array", 'args=(\n  --learning_rate 1e-4  # the rate\n  --network_dim 8\n  --output_name "a b"\n)\nTRAIN "${args[@]}"\n'),
    _sd("array_appended", 'args=()\nargs+=(--learning_rate 1e-4 --network_dim 8)\nargs+=("--seed=3")\nTRAIN "${args[@]}"\n'),
    _sd("array_of_arrays", 'a=(--seed 1)\nb=("${a[@]}" --xformers)\nTRAIN ${b[@]}\n'),
    _sd("array_unquoted", 'extArgs=()\nclip=2\nextArgs+=("--clip_skip $clip")\nTRAIN ${extArgs[@]} --seed 1\n'),
    _sd("array_element", 'lrs=(1e-5 2e-5)\nTRAIN --learning_rate ${lrs[1]} --network_dim ${#lrs[@]} --unet_lr $lrs\n'),
    _sd("declared_array", 'declare -a ARGS=(--seed 5)\nreadonly DIM=4\nTRAIN "${ARGS[@]}" --network_dim $DIM\n'),
    _sd("empty_array", 'ARGS=()\nTRAIN RATE "${ARGS[@]}"\n'),
    # Expansions.
    _sd("defaults", 'TRAIN --learning_rate ${LR:-2e-4} --network_dim ${DIM-16} --output_name "${NAME:-my lora}"\n'),
    _sd("default_of_an_argument", 'DIM=${1:-32}\nSEED=${2-7}\nTRAIN --network_dim $DIM --seed $SEED\n'),
    _sd("assigned_default", 'TRAIN --learning_rate ${LR:=2e-4} --unet_lr $LR\n'),
    _sd("alternative", 'W=/w.safetensors\nTRAIN RATE ${W:+--network_weights "$W"} ${NONE:+--seed 3}\n'),
    _sd("arithmetic", 'N=5\nTRAIN --max_train_steps $((N * 200)) --save_every_n_steps $(($N * 200 / 4)) --seed $((2 ** 5 + 7 % 4))\n'),
    _sd("ends_cut", 'M=/models/base.safetensors\nB=${M##*/}\nTRAIN --output_name ${B%.safetensors}_lora --output_dir "${M%/*}"\n'),
    _sd("printed", 'NAME=$(echo my_lora)\nTRAIN --output_name $NAME\n'),
    # Conditions that the script decides itself.
    _sd("if_known", 'multi=0\nnet="lycoris.kohya"\nargs=()\nif [[ $multi == 1 ]]; then args+=(--multi_gpu); fi\nif [[ $net == "lycoris.kohya" ]]; then\n  args+=(--network_args algo=loha)\nelse\n  args+=(--no)\nfi\nTRAIN "${args[@]}"\n'),
    _sd("and_known", 'c=1\n[ $c -eq 1 ] && EXTRA="$EXTRA --seed 4"\n[ -z "$c" ] || EXTRA="$EXTRA --xformers"\nTRAIN $EXTRA\n'),
    _sd("elif", 'MODE=b\nif [ "$MODE" = a ]; then D=1; elif [ "$MODE" = b ]; then D=2; else D=3; fi\nTRAIN --network_dim $D\n'),
    _sd("case", 'MODEL=flux\ncase "$MODEL" in\n  sd*) D=1 ;;\n  flux|chroma) D=2 ;;\n  *) D=3 ;;\nesac\nTRAIN --network_dim $D\n'),
    _sd("numbers_compared", 'N=2\nif (( N > 1 )); then :; fi\nif [ "$N" -gt 1 ] && [ "$N" -lt 4 ]; then D=4; fi\nTRAIN --network_dim ${D}\n', is_read=True),
    _sd("is_set", 'W=""\nR=/reg\nargs=()\nif [[ $W ]]; then args+=(--network_weights $W); fi\nif [[ -n $R && ! -z $R ]]; then args+=(--reg_data_dir $R); fi\nTRAIN "${args[@]}"\n'),
    # Functions, loops, eval and texts in the script.
    _sd("function", 'train() {\n  local dim=$1; shift\n  TRAIN --network_dim "$dim" "$@"\n}\ntrain 16 --seed 3\n'),
    _sd("function_of_arguments", 'add() { args+=("--$1=$2"); }\nargs=()\nadd learning_rate 1e-4\nadd network_dim 8\nTRAIN "${args[@]}"\n'),
    _sd("loop", 'for lr in 1e-4 2e-4; do\n  TRAIN --learning_rate $lr --output_name "lr_$lr"\ndone\n'),
    _sd("loop_fills_an_array", 'args=()\nfor kv in learning_rate=1e-4 seed=3; do args+=("--$kv"); done\nTRAIN "${args[@]}"\n'),
    _sd("eval", 'CMD="TRAIN RATE"\nCMD="$CMD --output_name \\"a b\\""\neval $CMD\n'),
    _sd("heredoc_config", 'LR=1e-4\ncat > config.toml <<EOF\nlearning_rate = $LR\nnetwork_dim = 8\nEOF\nTRAIN --config_file config.toml\n'),
    _sd("heredoc_as_it_stands", "cat <<'EOF' > config.toml\nlearning_rate = 1e-4\noutput_name = \"a$b\"\nEOF\nTRAIN --config_file=config.toml\n"),
    _sd("heredoc_of_options", 'ARGS=$(cat <<EOF\n--learning_rate 1e-4\n--network_dim 8\nEOF\n)\nTRAIN $ARGS\n'),
    _sd("heredoc_read", "read -r -d '' ARGS <<'EOF'\n--learning_rate 1e-4 --network_dim 8\nEOF\nTRAIN $ARGS\n"),
    _sd("arguments_passed_on", 'TRAIN RATE "$@"\n', is_read=False),
    _sd("mapfile", "mapfile -t ARGS <<'EOF'\n--learning_rate=1e-4\n--output_name=a b\nEOF\nTRAIN \"${ARGS[@]}\"\n"),
    _sd("default_of_itself", 'LR=${LR-3e-4}\nDIM=${DIM:-8}\nDIM=${DIM:-9}\nTRAIN --learning_rate $LR --network_dim $DIM\n'),
    _sd("unknown_argument", 'run() { TRAIN "$@"; }\nrun --seed 1 $EXTRA\n', is_read=False),
    _sd("unknown_argument_by_name", 'run() { local out="$1"; TRAIN RATE --output_dir "$out"; }\nrun "$OUT"\n', is_read=False),
    _sd("open_quote", 'TRAIN --seed 1\nX="open\nTRAIN --seed 2 --network_dim 4\n', is_read=False),
    _sd("text_over_lines", 'ARGS="--learning_rate 1e-4 \\\n  --network_dim 8 \\\n  --seed 2"\nTRAIN $ARGS\n'),
    _sd("text_over_lines_in_quotes", "ARGS='\n  --learning_rate 1e-4\n  --network_dim 8\n'\nTRAIN $ARGS\n"),
    _sd("array_grows_by_itself", 'a=(--seed 1)\na=("${a[@]}" --xformers)\nTRAIN "${a[@]}" --x "${a[*]}"\n'),
    _sd("set_arguments", 'set -- --seed 1\nset -- "$@" --network_dim 4\nTRAIN "$@"\n'),
    _sd("conditional_launcher", 'GPUS=2\nif [ $GPUS -gt 1 ]; then L="--multi_gpu --num_processes $GPUS"; else L=""; fi\naccelerate launch $L sdxl_train_network.py RATE\n'),
    _sd("arithmetic_condition", 'N=3\nif (( N > 2 )); then D=4; else D=5; fi\n(( N == 3 )) && S=1\nTRAIN --network_dim $D --seed ${S:-0}\n'),
    _sd("pattern_condition", 'M=flux-dev\nif [[ $M == flux* ]]; then D=1; else D=2; fi\n[[ $M != *dev ]] && D=3\nTRAIN --network_dim $D\n'),
    _sd("regular_expression", 'M=flux-dev\nif [[ $M =~ ^flux ]]; then D=1; else D=2; fi\nTRAIN --network_dim $D\n', is_read=False),
    _sd("unset", 'X="--seed 1"\nunset X\nTRAIN RATE $X\n', is_read=False),
    _sd("nested_functions", 'common() { echo --seed 1; }\nrun() { local -a a=(--network_dim "$1"); a+=(--xformers); TRAIN "${a[@]}"; }\nrun 8\nrun 16\n'),
    _sd("printed_by_a_function", 'common() { echo --seed 1; }\nTRAIN RATE $(common)\n', is_read=False),
    _sd("counted_loop", 'a=()\nfor ((i = 0; i < 2; i++)); do a+=("--arg$i"); done\nTRAIN "${a[@]}"\n', is_read=False),
    _sd("table_of_words", 'declare -A O=([lr]=1e-4)\nTRAIN --learning_rate ${O[lr]}\n', is_read=False),
    _sd("exit_if_missing", 'M=/m/x\n[ -n "$M" ] || { echo "no model"; exit 1; }\nset -euo pipefail\nTRAIN RATE --vae $M\n'),
    _sd("exit_by_a_file", 'if [ ! -f /etc/passwd ]; then echo none; exit 1; fi\nTRAIN RATE\n'),
    _sd("ends_before", 'TRAIN --seed 1\nexit 0\nTRAIN --seed 2\n'),
    _sd("sub_shell", 'D=4\n(D=8; TRAIN --network_dim $D)\nTRAIN --network_dim $D\n'),
    _sd("block", '{ TRAIN RATE; } 2>&1 | tee log\n'),
    _sd("time_and_exec", 'time TRAIN --seed 1\nexec TRAIN --seed 2\n'),
    _sd("equal_signs", 'LR=1e-4\nTRAIN --learning_rate=$LR --output_name="a b" --network_args "algo=loha" conv_dim=4\n'),
    _sd("value_with_hash", 'TRAIN --output_name a#b --comment "x # y" --seed 1\n'),
    _sd("replaced", 'N=a_b\nTRAIN --output_name ${N//_/-} --seed ${#N}\n', is_read=False),
    _sd("double_default", 'TRAIN --network_dim ${DIM:-${RANK:-8}} --output_dir ${OUT:-/o/${NAME:-x}}\n'),
    _sd("until_and_break", 'while true; do\n  TRAIN RATE && break\n  sleep 1\ndone\n'),
    _sd("either_command", 'if true; then TRAIN --seed 1; else TRAIN --seed 2; fi\n'),
    # What bash sets in other ways than by =, and only for a while.
    _sd("calculated_command", 'N=3\n((N++))\nlet N=N+2\nTRAIN --network_dim $N\n', is_read=False),
    _sd("calculated_by_the_way", 'N=3\nTRAIN --network_dim $((N++)) --seed $N\n', is_read=False),
    _sd("integer", 'declare -i N\nN=3+4\nTRAIN --network_dim $N\n', is_read=False),
    _sd("local", 'D=4\nf() { local D=8; local E; E=2; TRAIN --network_dim $D; }\nf\nTRAIN --network_dim $D --seed ${E:-1}\n'),
    _sd("reference", 'f() { local -n r=$1; r=8; }\nD=4\nf D\nTRAIN --network_dim $D\n', is_read=False),
    _sd("printed_into", 'D=4\nprintf -v D %s 8\nTRAIN --network_dim $D\n', is_read=False),
    _sd("read_from_nothing", 'D=4\nread D < /dev/null\nTRAIN --network_dim "$D"\n', is_read=False),
    _sd("several_read", 'read a b <<< "1 2"\nTRAIN --network_dim $a --seed $b\n', is_read=False),
    _sd("first_line_read", 'read -r A <<EOF\n--seed 1\n--xformers\nEOF\nTRAIN $A\n'),
    _sd("words_read", 'read -ra A <<< "--seed 1"\nTRAIN "${A[@]}"\n', is_read=False),
    _sd("behind_a_pipe", 'D=4\necho | { D=8; }\nTRAIN --network_dim $D\n'),
    _sd("exit_of_a_sub_shell", '(exit 1)\nTRAIN RATE\n'),
    _sd("exit_in_a_function", 'die() { exit 0; }\nTRAIN --seed 1\ndie\nTRAIN --seed 2\n'),
    _sd("break_and_continue", 'for s in 1 2 3; do\n  if [ $s = 1 ]; then continue; fi\n  if [ $s = 3 ]; then break; fi\n  TRAIN --seed $s\ndone\n'),
    _sd("left_loop", 'D=4\nwhile true; do D=8; break; done\nTRAIN --network_dim $D\n', is_read=False),
    _sd("element_unset", "a=(--seed 1 --xformers)\nunset 'a[2]'\nTRAIN \"${a[@]}\"\n", is_read=False),
    _sd("text_appended_to_an_array", 'a=(--seed=1 --xformers)\na+="2"\nTRAIN "${a[@]}"\n'),
    _sd("variables_side_by_side", 'A="--seed 1"\nB=--xformers\nC="$A $B"\nTRAIN $C --output_name "$A  $B"\n'),
    _sd("pattern_in_quotes", 'D=1\n[[ abc == "a*" ]] && D=2\n[ abc = "a*" ] && D=3\ncase abc in "a*") D=4 ;; esac\nTRAIN --network_dim $D\n'),
    _sd("pattern_of_a_variable", 'M=flux\nP="fl*"\ncase $M in $P) D=1 ;; *) D=2 ;; esac\nTRAIN --network_dim $D\n'),
    _sd("case_goes_on", 'case a in a) D=1 ;& *) D=2 ;; esac\nTRAIN --network_dim $D\n', is_read=False),
    _sd("quotes_in_a_default", 'TRAIN --output_name "${NAME:-"a b"}"\n', is_read=False),
    _sd("other_separator", 'IFS=,\nX=--seed,1\nTRAIN $X\n', is_read=False),
    _sd("characters_by_number", "TRAIN --output_name $'a\\x41' --comment $'b\\\\n'\n", is_read=False),
    _sd("table_by_number", 'a=([1]=1 [0]=--seed)\nTRAIN "${a[@]}"\n', is_read=False),
    ScriptCase("musubi_array", f'ARGS=(--task t2v-1.3B --dit /m/wan.safetensors)\nARGS+=(--network_dim 32 --learning_rate 2e-4)\naccelerate launch --mixed_precision bf16 {_MUSUBI[7:]} "${{ARGS[@]}}"\n'),
    ScriptCase("musubi_steps", "python src/musubi_tuner/wan_cache_latents.py --dataset_config d.toml\n" + _MUSUBI + " --task t2v-1.3B --dit m --dataset_config d.toml --learning_rate $((1))e-4\n"),
    ScriptCase("diffusion_pipe", 'N=${NUM_GPUS:-2}\nOPTS=(--deepspeed --config examples/wan.toml)\nNCCL_P2P_DISABLE="1" deepspeed --num_gpus=$N train.py "${OPTS[@]}"\n'),
    ScriptCase("simpletuner", 'OPTS=(--model_family=sdxl --model_type=lora)\nOPTS+=(--learning_rate=1e-4 --lora_rank=8)\naccelerate launch train.py "${OPTS[@]}"\n'),
    # What nobody knows without running it.
    _sd("if_a_file_is_there", 'args=(RATE)\nif [ -f /nowhere/x ]; then args+=(--seed 3); fi\nTRAIN "${args[@]}"\n', is_read=False),
    _sd("and_a_file", '[ -d /nowhere ] && EXTRA="$EXTRA --seed 9"\nTRAIN RATE $EXTRA\n', is_read=False),
    _sd("options_of_the_environment", "TRAIN RATE $MY_EXTRA_ARGS\n", is_read=False),
    _sd("options_of_a_program", 'TRAIN $(cat /dev/null)\n', is_read=False),
    _sd("while_reads", 'args=()\nwhile read -r line; do args+=("$line"); done < /dev/null\nTRAIN "${args[@]}"\n', is_read=False),
    _sd("folder_of_the_environment", "TRAIN RATE --output_dir $HOME/out\n", is_read=False),
    _sd("lost_backslash", "TRAIN --learning_rate 1e-4\n  --network_dim 8\n", is_read=False),
    # Windows.
    ScriptCase("batch", "@echo off\nset LR=1e-4\nset \"OUT=C:\\my out\"\naccelerate launch train_network.py ^\n  --learning_rate %LR% ^\n  --output_dir=\"%OUT%\"\npause\n", suffix=".bat", words=("accelerate", "launch", "train_network.py", "--learning_rate", "1e-4", "--output_dir=C:\\my out")),
    ScriptCase("batch_options", "set EXTRA=--seed 1\nset EXTRA=%EXTRA% --xformers\npython train_network.py %EXTRA%\n", suffix=".bat", words=("python", "train_network.py", "--seed", "1", "--xformers")),
    ScriptCase("batch_condition", "set EXTRA=--seed 1\nif exist x set EXTRA=%EXTRA% --xformers\npython train_network.py %EXTRA%\n", False, ".bat", ("python",)),
    ScriptCase("batch_block", "if \"%GPU%\"==\"1\" (\n  set EXTRA=--lowram\n)\npython train_network.py %EXTRA%\n", False, ".bat", ("python",)),
    ScriptCase("powershell", "$lr = \"1e-4\"\n$dim = 8\n$list = @(\"--learning_rate=$lr\", \"--network_dim\", $dim)\n$list += \"--seed=1\"\naccelerate launch `\n  \"./train_network.py\" `\n  --output_name='a b' $list\n", suffix=".ps1", words=("accelerate", "launch", "./train_network.py", "--output_name=a b", "--learning_rate=1e-4", "--network_dim", "8", "--seed=1")),
    ScriptCase("powershell_list", "$v2 = 0\n$clip = 2\n$args_ = [System.Collections.ArrayList]::new()\nif ($v2) {\n  [void]$args_.Add(\"--v2\")\n}\nelse {\n  [void]$args_.Add(\"--clip_skip=\" + $clip)\n}\npython train_network.py --seed=1 @args_\n", suffix=".ps1", words=("python", "train_network.py", "--seed=1", "--clip_skip=2")),
    ScriptCase("powershell_condition", "$a = @(\"--seed=1\")\nif (Test-Path x) { $a += \"--xformers\" }\npython train_network.py $a\n", False, ".ps1", ("python",)),
    ScriptCase("powershell_loop", "$a = @()\nforeach ($k in (Get-Content x)) { $a += \"--$k\" }\npython train_network.py @a\n", False, ".ps1", ("python",)),
)  # fmt: skip
