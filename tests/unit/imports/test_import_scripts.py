"""Scripts and command lines are read without being run, and what nobody can know of them is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from refused import refused

from reelworks.annexes.imports import batch, importer, powershell, shell
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.annexes.imports.script import Script
from reelworks.training.recipe import recipe_file


def imported(folder: Path, text: str, name: str = "run.sh") -> tuple[importer.ImportResult, Path]:
    (folder / name).write_text(text, encoding="utf-8")
    recipe = folder / "recipe.toml"
    return importer.convert(ImportRequest(files=(folder / name,), output=recipe, clips=False)), recipe


TRAIN = (
    "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path=/m/sdxl.safetensors --train_data_dir=/d"
)


def test_options_of_arrays_are_in_the_recipe(tmp_path: Path) -> None:
    _, recipe = imported(
        tmp_path,
        f'args=(--network_module networks.lora)\nargs+=(--learning_rate 3e-4 --network_dim 24)\n{TRAIN} "${{args[@]}}"\n',
    )
    read = recipe_file.load(recipe, [])
    assert (read.train.learning_rate, read.lora.rank) == (3e-4, 24)


@pytest.mark.parametrize("sign", ["source", "."])
@pytest.mark.parametrize("joint", ["\n", " && "])
@pytest.mark.parametrize(
    "name", ["venv/bin/activate", "settings.sh", "written.sh", "run.sh", "$(conda info --base)/a.sh"]
)
def test_a_script_sources_files_that_are_there_or_not(tmp_path: Path, sign: str, joint: str, name: str) -> None:
    """Nearly every script begins so; one that sources itself would do so for ever."""
    (tmp_path / "settings.sh").write_text("export RANK=24\n", encoding="utf-8")
    begin = "RANK=24\n" if name not in ("settings.sh", "written.sh") else ""
    begin += "cat >written.sh <<END\nRANK=24\nEND\n" if name == "written.sh" else ""
    text = f"{begin}{sign} {name}{joint}{TRAIN} --network_module networks.lora --network_dim $RANK\n"
    if name == "run.sh":
        text = f"{TRAIN} --network_module networks.lora --network_dim 24\n{sign} {name}\n"
    _, recipe = imported(tmp_path, text)
    assert recipe_file.load(recipe, []).lora.rank == 24


@pytest.mark.parametrize("end", ["", " \\\\", " \\\\  ", " ^", " `"])
def test_a_command_line_goes_on_where_its_mark_is_lost(tmp_path: Path, end: str) -> None:
    """As pages and chats show command lines."""
    command = f"{TRAIN}{end}\n  --learning_rate 3e-4{end}\n  --network_module networks.lora --network_dim 24"
    recipe = tmp_path / "recipe.toml"
    importer.convert(ImportRequest(files=(), command=command, output=recipe, clips=False))
    read = recipe_file.load(recipe, [])
    assert (read.train.learning_rate, read.lora.rank) == (3e-4, 24)


def test_options_that_are_not_known_end_the_import(tmp_path: Path) -> None:
    """They would become defaults of the trainer."""
    with refused("script-not-followed", says=r"\$\{args\[@\]\} \(line 3\).*if \[ -f x"):
        imported(
            tmp_path, f'args=(--seed 1)\nif [ -f x ]; then args+=(--learning_rate 3e-4); fi\n{TRAIN} "${{args[@]}}"\n'
        )


@pytest.mark.parametrize("end", ["f() { f; }\nf", "f() { eval f; }\nf", "f() { g; }; g() { f; }\ng"])
def test_a_function_that_calls_itself_is_left_at_some_depth(tmp_path: Path, end: str) -> None:
    _, recipe = imported(tmp_path, f"{TRAIN} --network_module networks.lora --network_dim 24\n{end}\n")
    assert recipe_file.load(recipe, []).lora.rank == 24


@pytest.mark.parametrize("value", ["$(date +%F)", "my_$(date +%F)", "`date +%F`", '"$(date +%s)-a"', "${U:-$(id -u)}x"])
@pytest.mark.parametrize("form", ["{0} --output_name {1}", "{0} --output_name={1}", "X={1}\n{0} --output_name $X"])
def test_the_value_of_an_option_may_be_what_a_command_prints(tmp_path: Path, value: str, form: str) -> None:
    made, recipe = imported(tmp_path, f"{form.format(TRAIN, value)} --learning_rate 3e-4\n")
    assert recipe_file.load(recipe, []).train.learning_rate == 3e-4
    assert Fate.UNREAD in {key.fate for key in made.keys}


@pytest.mark.parametrize("value", ["$(date +%F)", "my_$(date +%F)", "`date +%F`"])
def test_what_a_command_prints_in_place_of_an_option_ends_the_import(tmp_path: Path, value: str) -> None:
    with refused("script-not-followed", says="date"):
        imported(tmp_path, f"{TRAIN} --seed 1 {value} --learning_rate 3e-4\n")


def test_a_part_that_may_hold_options_ends_the_import_also_behind_one_that_is_a_value(tmp_path: Path) -> None:
    with refused("script-not-followed", says=r"\$B \(line 2\)"):
        imported(tmp_path, f'if [ -f x ]; then B=" --seed 1"; fi\n{TRAIN} --output_dir=$A$B\n')


@pytest.mark.parametrize(
    "text", [f"exec > log.txt 2>&1\n{TRAIN} --seed 24", f'MORE=" --seed 24"\n{TRAIN} --cache_latents$MORE']
)
def test_what_a_shell_splits_or_sends_elsewhere_is_read_to_its_end(tmp_path: Path, text: str) -> None:
    assert recipe_file.load(imported(tmp_path, text)[1], []).seed == 24


@pytest.mark.parametrize(
    "text",
    [
        f"if [ sdxl = sdxl ]; then S=24; else S=8; fi\n{TRAIN} --seed $S",
        f"if [ sdxl == flux ]; then S=8; else S=24; fi\n{TRAIN} --seed $S",
        f"if [ sdxl != flux ]; then S=24; else S=8; fi\n{TRAIN} --seed $S",
        f"{TRAIN} --seed ${{S:-24}}",
        f"{TRAIN} --seed ${{S-24}}",
        f"S=24\n{TRAIN} --seed ${{S:-8}}",
        f"cat > c.toml <<EOF\nseed = 24\nEOF\n{TRAIN} --config_file c.toml",
        f"tee c.toml <<EOF\nseed = 24\nEOF\n{TRAIN} --config_file c.toml",
        f"cat <<< 'seed = 24' > c.toml\n{TRAIN} --config_file c.toml",
        f"tee c.toml <<< 'seed = 24'\n{TRAIN} --config_file c.toml",
        f"cat > c.toml <<< 'seed = 24'\n{TRAIN} --config_file c.toml",
        f"cat > c.toml <<A\nseed = 24\nA\ncat >> c.toml <<< 'network_dim = 4'\n{TRAIN} --config_file c.toml",
        f"tee c.toml <<A\nseed = 24\nA\ntee -a c.toml <<A\nnetwork_dim = 4\nA\n{TRAIN} --config_file c.toml",
        f"echo 'seed = 24' > c.toml\n{TRAIN} --config_file c.toml",
        f"S=24; echo network_dim = 4 >c.toml; echo seed = $S >> c.toml\n{TRAIN} --config_file c.toml",
        f'echo -e "network_dim = 4\\nseed = 24" > c.toml\n{TRAIN} --config_file c.toml',
        f"cat > c.toml <<A\nseed = 8\nA\necho -n seed = 24 > c.toml\n{TRAIN} --config_file c.toml",
        f"read S <<< 24\n{TRAIN} --seed $S",
        f"S=24\nS=8 &\n{TRAIN} --seed $S",
        f"S=24\n{{ S=8; }} &\n{TRAIN} --seed $S & wait",
        f'args=("--output_dir=$OUT" --seed 24)\n{TRAIN} "${{args[@]}}"',
    ],
)
def test_what_a_shell_knows_is_what_the_recipe_has(tmp_path: Path, text: str) -> None:
    assert recipe_file.load(imported(tmp_path, text)[1], []).seed == 24


@pytest.mark.parametrize(
    ("script", "folder"),
    [
        ("cd tools/sd\n{}", "data/mug"),
        ("cd tools && cd sd && {}", "data/mug"),
        ("cd -- tools\npushd sd\n{}", "data/mug"),
        ('cd "$(dirname "$0")/tools/sd"\n{}', "data/mug"),
        ("(cd tools; true)\ncd tools/sd; {}", "data/mug"),
        ("if true; then cd tools/sd; fi\n{}", "data/mug"),
        ("(cd tools/sd)\n{}", "../../data/mug"),
        ("cd $NOWHERE\n{}", "../../data/mug"),
        ("cd tools/sd; cd -\n{}", "../../data/mug"),
    ],
)
@pytest.mark.parametrize("sign", [" ", "="])
def test_paths_are_of_the_folder_that_a_script_has_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, folder: str, sign: str
) -> None:
    """As far as they lead to something there, whether the folder itself is there or not."""
    (tmp_path / "data" / "mug").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (command,) = shell.follow(script.format(f"python t.py --train_data_dir{sign}../../data/mug --dim 4")).commands
    assert " ".join(command.words) == f"python t.py --train_data_dir{sign}{folder} --dim 4"


@pytest.mark.parametrize(
    ("read", "script", "folder"),
    [
        (batch.follow, "cd /d tools\\sd\n{}", "data/mug"),
        (batch.follow, 'cd /d "%~dp0tools\\sd" && {}', "data/mug"),
        (batch.follow, "@cd %~dp0\nchdir tools & pushd sd\n{}", "data/mug"),
        (batch.follow, "pushd tools\\sd\npopd\n{}", "..\\..\\data\\mug"),
        (batch.follow, "if exist x (\ncd tools\\sd\n)\n{}", "..\\..\\data\\mug"),
        (batch.follow, "cd /d %NOWHERE%\n{}", "..\\..\\data\\mug"),
        (powershell.follow, "Set-Location tools\\sd\n{}", "data/mug"),
        (powershell.follow, "Push-Location -Path $PSScriptRoot\\tools\nsl sd; {}", "data/mug"),
        (powershell.follow, "cd tools/sd; Pop-Location\n{}", "..\\..\\data\\mug"),
        (powershell.follow, "if ($x) {{ cd tools/sd }}\n{}", "..\\..\\data\\mug"),
        (powershell.follow, "Set-Location $nowhere\n{}", "..\\..\\data\\mug"),
    ],
)
def test_paths_of_windows_are_of_the_folder_that_a_script_has_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], Script], script: str, folder: str
) -> None:
    (tmp_path / "data" / "mug").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (command,) = read(script.format("python t.py --train_data_dir ..\\..\\data\\mug --dim 4")).commands
    assert command.words == ["python", "t.py", "--train_data_dir", folder, "--dim", "4"]


@pytest.mark.parametrize("option", ["--output_dir $OUT", "--output_dir=$OUT", '--output_dir="$OUT/x"'])
def test_a_value_that_is_not_known_stands_with_its_reason(tmp_path: Path, option: str) -> None:
    made, _ = imported(tmp_path, f"{TRAIN} {option} --learning_rate 1e-4\n")
    (line,) = [key for key in made.keys if key.fate is Fate.UNREAD]
    assert (line.key, line.value) == ("$OUT", "the script does not set")


@pytest.mark.parametrize("before", ["", "set OUT=small\n"])
@pytest.mark.parametrize("condition", ["if exist big set OUT=big", "if exist big (\n  set OUT=big\n)"])
def test_what_a_batch_file_sets_under_a_condition_is_not_known(tmp_path: Path, before: str, condition: str) -> None:
    """Whether or not it is set before."""
    made, _ = imported(tmp_path, f"{before}{condition}\n{TRAIN} --output_dir %OUT% --learning_rate 1e-4\n", "run.bat")
    (line,) = [key for key in made.keys if key.fate is Fate.UNREAD]
    assert (line.key, line.value) == ("%OUT%", "is set under a condition")


def test_what_a_batch_file_has_in_quotes_is_one_word_whatever_it_holds(tmp_path: Path) -> None:
    script = f'if exist D:\\ set OUT=D:\\my-out\n{TRAIN} --output_dir "%OUT%"\n'
    with refused("script-not-followed", says="%OUT%"):
        imported(tmp_path, script.replace('"', ""), "run.bat")
    made, _ = imported(tmp_path, script, "run.bat")
    assert [key.key for key in made.keys if key.fate is Fate.UNREAD] == ["%OUT%"]


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("c.toml", '[general]\n[[datasets]]\nimage_directory = "C:\\data\\mug"\n', "write / for"),
        ("c.json", '{"a": 1, "b": [1, 2,],}', "remove the comma"),
        ("c.json", '{\n  // the rate\n  "a": 1,\n}', "remove the comments"),
        ("c.json", '{"a": 1, # the rate\n "b": "http://x"}', "remove the comments"),
        ("c.json", '{"a": "http://x" "b": 1}', "correct the file"),
    ],
)
def test_what_is_easily_wrong_is_told(tmp_path: Path, name: str, text: str, remedy: str) -> None:
    with refused("config-unreadable", says=remedy):
        imported(tmp_path, text, name)


def test_a_list_that_a_config_names_is_told_what_is_wrong_in_it(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "/x",},]', encoding="utf-8")
    with refused("config-unreadable", says="remove the comma"):
        imported(
            tmp_path,
            '{"model_family": "sdxl", "model_type": "lora", "data_backend_config": "data.json"}',
            "config.json",
        )


@pytest.mark.parametrize(("switch", "model"), [("FLUX=true", "flux-dev"), ("FLUX='false'", "sdxl")])
def test_a_config_env_of_before_model_families(tmp_path: Path, switch: str, model: str) -> None:
    text = f'export MODEL_NAME=/m/x\nexport {switch}\nexport MODEL_TYPE=\'lora\'\nDATALOADER_CONFIG=data.json\nLEARNING_RATE=2e-5\nTRAINER_EXTRA_ARGS="--lora_rank=8"\nTRAINER_EXTRA_ARGS+=" --seed=3"\n'
    _, recipe = imported(tmp_path, text, "config.env")
    read = recipe_file.load(recipe, [])
    assert (read.model.name, read.lora.rank, read.train.learning_rate, read.seed) == (model, 8, 2e-5, 3)


def test_what_is_unknown_in_a_part_of_a_config_env_is_said(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, 'MODEL_FAMILY=sdxl\nMODEL_TYPE=lora\nOUTPUT_DIR="$HOME/out"\n', "config.env")
    (line,) = [key for key in made.keys if key.fate is Fate.UNREAD]
    assert (line.key, line.value) == ("OUTPUT_DIR", "the script does not set")


@pytest.mark.parametrize(
    ("condition", "rank"),
    [
        ('$kind -eq "sdxl"', 24),
        ('$kind -ne "sdxl"', 8),
        ('$kind -eq "flux"', 8),
        ("$size -gt 512", 24),
        ("$size -gt 1024", 8),
        ("$size -ge 1024 -and -not $off", 24),
        ("-not $off -or $off -and $off", 8),  # which bind alike, from left to right
        ("-not $off -or ($off -and $off)", 24),
    ],
)
def test_a_branch_of_powershell_is_taken_as_it_takes_it(tmp_path: Path, condition: str, rank: int) -> None:
    """Which compares texts regardless of case, and numbers as numbers."""
    text = f"""
$kind = "SDXL"
$size = 1024
$off = $false
$rank = 8
if ({condition}) {{ $rank = 24 }}
{TRAIN} --network_module networks.lora --network_dim $rank
"""
    _, recipe = imported(tmp_path, text, "run.ps1")
    assert recipe_file.load(recipe, []).lora.rank == rank


# What PowerShell gives to `python` by its language reference; ? where a reader of the script need not know, but has to say so.
ODD: list[tuple[str, str]] = [
    # Lists, and what changes them.
    ("$null = $l.Add('--w')\n$l.Add('--o=x') > $null\n$l.Add('--p') | Out-Null\npython t.py @l", "t.py|--w|--o=x|--p"),
    ("$l.Add('--x')\n$l.Remove('--x')\npython t.py @l", "t.py|?"),
    ("$l.Add('--x')\n$l[0] = '--y'\npython t.py @l", "t.py|?"),
    ("$l.Add('--x')\n[array]::Reverse($l)\npython t.py @l", "t.py|?"),
    ("$b = $l\n$b.Add('--x')\npython t.py @l", "t.py|--x"),
    ("$a = @()\n$a.Add('--x')\npython t.py @a", "t.py|?"),  # an array has a fixed size
    ("$a = @('--l=' + 'x', '--b')\npython t.py @a", "t.py|--l=x --b"),  # , binds before +
    ("$a = @(\n'--a' # it's\n<# '--b' #>\n'--c', 3\n)\npython t.py @a", "t.py|--a|--c|3"),
    # Variables.
    ("$env:LR = '1'\n$LR = '2'\npython t.py $env:LR $LR \"$env:LR/x\" ${env:LR}", "t.py|1|2|1/x|1"),
    ("$global:a = 1\npython t.py --a=$a --b=$script:a", "t.py|--a=1|--b=1"),
    ("$n = 2\n$n *= 4\npython t.py --n $n", "t.py|--n|?"),
    ("$n = 2\n$n++\npython t.py --n=$n", "t.py|?"),
    ("$c, $d = 1, 2\npython t.py --c $c --d $d", "t.py|--c|?|--d|?"),
    ("$a = $b = 3\npython t.py --a $a --b $b", "t.py|--a|?|--b|?"),
    ("$x = 1\nSet-Variable x 4\npython t.py --x $x", "t.py|--x|?"),
    ("$lr = 1\nfunction F($lr) { python t.py --lr=$lr }\nF 5", "t.py|?"),
    ("function F { $script:h = 4 }\n$h = 5\nF\npython t.py --h $h", "t.py|--h|?"),
    ("[string]$f = 1.50\npython t.py --f $f", "t.py|--f|?"),
    # Values.
    ("$e = 1 + 2\n$f = '1' + 2\n$g = 10 - 4\npython t.py --e $e --f $f --g $g", "t.py|--e|3|--f|12|--g|?"),
    ("$a = 'x' +\n 'y'\n$b = 1,\n 2\npython t.py $a $b", "t.py|xy|1|2"),
    ("$a = @(1, 2)\npython t.py \"$a[0]\" --b=$a[0] --c $a[0]", "t.py|1 2[0]|--b=1 2[0]|--c|?"),
    ("$x = 'abc'\npython t.py \"$x.Length\" --a=$x.txt --b $x.Length", "t.py|abc.Length|--a=abc.txt|--b|?"),
    ("$f = $false\npython t.py $true --f $f \"$f\" $null", "t.py|True|--f|False|False|?"),
    ("$e = 4\npython t.py \"$($e * 2)\" --b=$($e + 1) --c=$(Get-Date)", "t.py|?|--b=5|?"),
    ("$a = 0.00001\n$b = 1.0\n$c = 007\npython t.py $a $b $c 007", "t.py|1E-05|1|7|007"),
    ("$x = 'a' -replace 'a', 'b'\n$y = '{0}' -f 'a', 'b'\npython t.py --x $x --y $y", "t.py|--x|?|--y|?"),
    ("$h = @{ lr = '1' }\npython t.py --lr $h.lr @h", "t.py|--lr|?|?"),
    ("python t.py 0.9,0.99 a,b 0.9, 0.99", "t.py|0.9,0.99|a,b|?|0.99"),
    ("$d = 'C:\\a b'\npython t.py $d\"\\c\" $d/e --o=$d\"\\f\"", "t.py|C:\\a b\\c|C:\\a b/e|--o=C:\\a b\\f"),
    ("python t.py -lr=0.5 --p=(1+2) \"a\"b", "t.py|?|?|?"),  # which it gives as several words
    # Quotes.
    ("$x = 1\npython t.py \"`$x\" `$x '$x' \"a`nb\" a` b", "t.py|$x|$x|$x|a\nb|a b"),
    ("$s = '<# no #>'\npython t.py $s <# '--x' #> --t # '--u'", "t.py|<# no #>|--t"),
    ("$s = \"\"# none, \"x\"\npython t.py --s=$s --t 'it''s' \"a \"\"b\"\"\"", "t.py|--s=|--t|it's|a \"b\""),
    ("$t = @\"\na \"b\" $($l.Count)\n\"@\n$u = @'\nit's # $t\n'@\npython t.py --u=$u --t=$t", "t.py|--u=it's # $t|?"),
    ("python t.py --a=1 `\n# --b=2 `\n --c=3", "t.py|--a=1|?"),
    ("python t.py --a\n$x = 'open", "t.py|--a|?"),
    ("python t.py --a\n$x = " + "(" * 400 + "1" + ")" * 400, "t.py|--a|?"),
    # Conditions and flow.
    ("if ('0') { $a = 1 } else { $a = 2 }\npython t.py $a", "t.py|1"),
    ("if ('10' -gt '9') { $a = 1 } else { $a = 2 }\npython t.py $a", "t.py|2"),
    ("if (10 -gt '9') { $a = 1 } else { $a = 2 }\npython t.py $a", "t.py|1"),
    ("if ($false -eq '') { $a = 1 } elseif (1) { $a = 2 }\npython t.py $a", "t.py|1"),
    ("if ('AdamW8bit' -ilike 'adam*')\n{ $a = 1 }\n# else\nelse\n{ $a = 2 }\npython t.py $a", "t.py|1"),
    ("$c = if ($true) { 5 } else { 6 }\npython t.py --c $c", "t.py|--c|5"),
    ("python t.py 1\nexit\npython t.py 2", "t.py|1"),
    ("foreach ($s in 1..3) { if ($s -gt 0) { python t.py --s=$s } }", "t.py|?"),
    ("try { python t.py --a 1 }\ncatch { Write-Host x; exit }\nfinally { $z = 1 }", "t.py|--a|1"),
    ("$a = 1\ntry { $a = 2 } catch { $a = 3 }\npython t.py --a=$a", "t.py|?"),
    ("$i = 0\nwhile ($i -lt 3) { python t.py --i=$i; $i++ }", "t.py|?"),
    ("$out = python t.py --lr 1 2>&1 | Tee-Object log.txt", "t.py|--lr|1"),
    ("$root = $PSScriptRoot\npython t.py --a $root\\mug --b \"$PSScriptRoot/cup\"", "t.py|--a|.\\mug|--b|./cup"),
    ("$root = Split-Path -Parent $MyInvocation.MyCommand.Path\npython t.py --a $root/mug", "t.py|--a|./mug"),
    ("$root = (split-path $MyInvocation.MyCommand.Definition -Parent)\npython t.py --a $root/mug", "t.py|--a|./mug"),
    ("[void](python t.py --lr 1 > log.txt --x)", "t.py|--lr|1|--x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), ODD, ids=range(len(ODD)))
def test_a_word_of_powershell_is_what_it_gives_or_said_to_be_unknown(text: str, words: str) -> None:
    script = powershell.follow(f"$l = New-Object System.Collections.ArrayList\n{text}\n")
    (command,) = [each for each in script.commands if each.words[:1] == ["python"]]
    known = [word for word in words.split("|") if word != "?"]
    said = [word for word in command.words[1:] if not any(source in word for source in command.notes)]
    assert said == known
    assert words.count("?") == len(command.words) - 1 - len(said) + len(command.unread)


@pytest.mark.parametrize(
    ("text", "why"),
    [("$n = 2\n$n++\npython t.py --n=$n", r"is set by '\$n\+\+'"), ("python t.py --n=$x", "the script does not set")],
)
def test_a_word_of_powershell_is_unknown_for_a_reason(text: str, why: str) -> None:
    (command,) = powershell.follow(text).commands
    assert re.search(why, str([*command.notes.values(), *command.unread]))
