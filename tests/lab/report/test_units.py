from fractions import Fraction

from lab.core.units import bytes_text, count, exact, scaled, share_text


def test_four_bytes_are_written_out():
    assert bytes_text(4) == "4 B"


def test_a_fraction_of_a_byte_keeps_four_digits():
    assert bytes_text(Fraction(508, 64)) == "7.938 B"


def test_1744830464_bytes_are_1745_thousandths_of_a_gigabyte():
    assert bytes_text(1_744_830_464) == "1.745 GB"


def test_what_rounds_to_a_thousand_takes_the_next_prefix():
    assert bytes_text(999_999) == "1 MB"
    assert bytes_text(999_900) == "999.9 kB"


def test_a_yottabyte_has_no_larger_prefix():
    assert bytes_text(5 * 10**25) == "5e+04 ZB"


def test_flops_carry_their_own_unit():
    assert scaled(24_690_000_000_000_000, "FLOP") == "24.69 PFLOP"


def test_exact_numbers_have_separators_and_fractions_one_decimal():
    assert exact(1_731_198_976) == "1,731,198,976"
    assert exact(Fraction(1, 3)) == "0.3"
    assert exact(Fraction(29_999, 10_000)) == "3"


def test_a_share_has_three_digits_and_never_an_exponent():
    shares = (0, 1.05e-8, 1e-4, 0.495, 0.123456, 9.999, 123.4)
    assert list(map(share_text, shares)) == ["0 %", "< 0.01 %", "0.01 %", "49.5 %", "12.3 %", "1,000 %", "12,340 %"]


def test_one_is_singular_and_a_thousand_has_a_separator():
    assert (count(1, "reduction"), count(3072, "gather"), count(0, "run")) == ("1 reduction", "3,072 gathers", "0 runs")
