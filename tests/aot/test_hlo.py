"""Programs' texts: what loops multiply, what groups send, what fusions touch."""

import dataclasses

import pytest

from jaxformer.aot.hlo import Program

# A loop of 3 with a loop of 5 in it; by hand: f32[4,8] is 128 bytes, f32[16,8] 512, bf16[8] 16.
TEXT = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%sliced (p: f32[16,8], q: s32[]) -> f32[4,8] {
  %p = f32[16,8]{1,0:T(8,128)} parameter(0)
  %q = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[] constant(0)
  ROOT %slice = f32[4,8]{1,0} dynamic-slice(%p, %q, %zero), dynamic_slice_sizes={4,8}
}

%inner_body (x: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %x = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%x), index=0
  %y = f32[4,8]{1,0} get-tuple-element(%x), index=1
  %reduced = f32[4,8]{1,0} all-reduce(%y), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %out = (s32[], f32[4,8]{1,0}) tuple(%i, %reduced)
}

%cond (x: (s32[], f32[4,8])) -> pred[] {
  %x = (s32[], f32[4,8]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%outer_body (x: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %x = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%x), index=0
  %y = f32[4,8]{1,0} get-tuple-element(%x), index=1
  %start = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%y), replica_groups=[2,4]<=[8], \
dimensions={0}
  %done = f32[16,8]{1,0} all-gather-done(%start)
  %part = f32[4,8]{1,0} fusion(%done, %i), kind=kLoop, calls=%sliced
  %again = (s32[], /*index=1*/f32[4,8]{1,0}) tuple(%i, %part)
  ROOT %loop = (s32[], f32[4,8]{1,0}) while(%again), condition=%cond, body=%inner_body, \
backend_config={"known_trip_count":{"n":"5"}}
}

ENTRY %main (x: f32[4,8], w: bf16[8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = bf16[8]{0} parameter(1)
  %moved = bf16[8]{0:T(128)S(1)} copy(%w)
  %sent = bf16[8]{0} collective-permute(%moved), source_target_pairs={{0,1},{1,0}}
  %zero = s32[] constant(0)
  %first = (s32[], f32[4,8]{1,0}) tuple(%zero, %x)
  %loop = (s32[], f32[4,8]{1,0}) while(%first), condition=%cond, body=%outer_body, \
backend_config={"known_trip_count":{"n":"3"}}, metadata={op_name="jit(step)/layers/while"}
  ROOT %out = f32[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_collectives_are_multiplied_by_the_trip_counts_of_all_loops_around_them():
    found = {one.kind: dataclasses.astuple(one)[1:] for one in Program(TEXT).collectives()}
    assert found == {
        "all-gather": (3, 3 * 512, 3 * 512 * 3 / 4),  # groups of 4: each sends 3/4 of the whole
        "all-reduce": (15, 15 * 128, 15 * 128 * 2 * 1 / 2),  # groups of 2: there and back
        "collective-permute": (1, 16, 16),
    }


def test_hbm_bytes_are_those_of_slices_and_not_of_what_stays_on_the_chip():
    gathered = 3 * (128 + 512)
    sliced = 3 * (128 + 4 + 128)  # of 512 bytes only the slice is read
    reduced = 15 * (128 + 128)
    copied, sent = 16, 16  # from HBM into the chip's own memory, and back
    assert Program(TEXT).hbm_bytes() == gathered + sliced + reduced + copied + sent


def test_the_largest_results_are_named():
    found = Program(TEXT).largest(2)
    assert str(max(found[0].arrays, key=lambda a: a.size)) == "f32[16,8]"
    assert {one.name for one in found} >= {"start"}


@pytest.mark.parametrize(
    ("groups", "members"),
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,4]<=[8]", 4),
        ("[1,8]<=[4,2]T(1,0)", 8),
        ("{}", 8),
        ("mesh['a'=2,'b'=4] {'b'}", 4),
        ("mesh['a'=2,'b'=4] {'a','b':(1)2}", 4),
    ],
)
def test_groups_in_every_notation(groups, members):
    text = TEXT.replace("is_scheduled=true", "num_partitions=8").replace("{{0,1},{2,3}}", groups)
    [reduced] = [one for one in Program(text).collectives() if one.kind == "all-reduce"]
    assert reduced.sent == 15 * 128 * 2 * (members - 1) / members


def test_groups_in_a_new_notation_are_refused_not_ignored():
    text = TEXT.replace("{{0,1},{2,3}}", "torus[8]")
    with pytest.raises(ValueError, match="no groups that can be read"):
        Program(text).collectives()


def test_what_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        Program("HloModule x\n")


@pytest.mark.parametrize("start", ["", "constant(2)"])
def test_a_loop_that_the_compiler_does_not_count_is_counted_by_its_condition(start):
    test = """\
  %n = s32[] constant(5)
  %at = s32[] get-tuple-element(%x), index=0
  ROOT %less = pred[] compare(%at, %n), direction=LT
"""
    text = TEXT.replace("  ROOT %yes = pred[] constant(true)\n", test)
    text = text.replace(', \\\nbackend_config={"known_trip_count":{"n":"5"}}', "")
    text = text.replace(', backend_config={"known_trip_count":{"n":"5"}}', "")
    assert '"n":"5"' not in text
    if start:
        first = "  %i = s32[] get-tuple-element(%x), index=0\n"
        before = first + "  %y = f32[4,8]{1,0} get-tuple-element(%x), index=1\n  %start"
        assert before in text
        text = text.replace(before, before.replace("get-tuple-element(%x), index=0", start))
    [reduced] = [one for one in Program(text).collectives() if one.kind == "all-reduce"]
    assert reduced.count == 3 * (3 if start else 5)


FUSED = """\
HloModule jit_step, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%begin (p: f32[4,8]) -> f32[16,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %g = f32[16,8]{1,0} all-gather(%p), channel_id=7, replica_groups={}, dimensions={0}
}

%go_on (p: f32[4,8]) -> f32[16,8] {
  %p = f32[4,8]{1,0} parameter(0)
  ROOT %g.1 = f32[16,8]{1,0} all-gather(%p), channel_id=7, replica_groups={}, dimensions={0}
}

%all-reduce-scatter.3 (p: f32[16,8]) -> f32[4,8] {
  %p = f32[16,8]{1,0} parameter(0)
  %r = f32[16,8]{1,0} all-reduce(%p), channel_id=8, replica_groups={}, to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %s = f32[4,8]{1,0} dynamic-slice(%r, %zero, %zero), dynamic_slice_sizes={4,8}
}

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  %one = f32[16,8]{1,0} fusion(%x), kind=kCustom, calls=%begin
  %two = f32[16,8]{1,0} fusion(%x), kind=kCustom, calls=%go_on, frontend_attributes={metadata={
"about":"a kernel"
}}, metadata={op_name="a line that begins with braces"}
  ROOT %three = f32[4,8]{1,0} fusion(%two), kind=kCustom, calls=%all-reduce-scatter.3
}
"""


def test_what_a_tpu_fuses_is_counted_once_and_by_what_it_does():
    found = {one.kind: (one.count, one.bytes, one.sent) for one in Program(FUSED).collectives()}
    assert found == {"all-gather": (1, 512, 384), "reduce-scatter": (1, 512, 384)}


# By hand: f32[8,16,8] is 4,096 bytes, f32[1,16,8] 512, f32[16,64] 4,096, f32[4,64] 1,024.
TOUCHED = """\
HloModule jit_step, num_partitions=1

%inner (p: f32[8,16,8], i: s32[]) -> f32[1,16,8] {
  %p = f32[8,16,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[8,16,8]{2,1,0} bitcast(%p)
  ROOT %s = f32[1,16,8]{2,1,0} dynamic-slice(%b, %i, %i, %i), dynamic_slice_sizes={1,16,8}
}

%sliced (p: f32[8,16,8], i: s32[]) -> f32[1,16,8] {
  %p = f32[8,16,8]{2,1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %f = f32[1,16,8]{2,1,0} fusion(%p, %i), kind=kLoop, calls=%inner
}

%kept (p: f32[8,16,8], x: f32[1,16,8], i: s32[]) -> (f32[8,16,8], f32[1,16,8]) {
  %p = f32[8,16,8]{2,1,0} parameter(0)
  %x = f32[1,16,8]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %u = f32[8,16,8]{2,1,0} dynamic-update-slice(%p, %x, %i, %i, %i)
  %d = f32[1,16,8]{2,1,0} add(%x, %x)
  ROOT %t = (f32[8,16,8]{2,1,0}, f32[1,16,8]{2,1,0}) tuple(%u, %d)
}

ENTRY %main (p: f32[8,16,8], i: s32[], o: f32[16,64], n: s32[4,1], v: f32[4,64]) -> f32[16,64] {
  %p = f32[8,16,8]{2,1,0} parameter(0)
  %i = s32[]{:S(6)S(1)} parameter(1)
  %o = f32[16,64]{1,0} parameter(2)
  %n = s32[4,1]{1,0} parameter(3)
  %v = f32[4,64]{1,0} parameter(4)
  %one = f32[1,16,8]{2,1,0} fusion(%p, %i), kind=kLoop, calls=%sliced
  %two = (f32[8,16,8]{2,1,0}, f32[1,16,8]{2,1,0}) fusion(%p, %one, %i), kind=kLoop, calls=%kept
  ROOT %w = f32[16,64]{1,0} scatter(%o, %n, %v), to_apply=%add
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""


def test_what_fusions_slice_and_update_is_all_that_they_move():
    sliced, kept, scattered = 512 + 512, 512 + 512 + 512, 2 * 1024
    assert Program(TOUCHED).hbm_bytes() == sliced + kept + scattered
