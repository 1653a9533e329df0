package normalize

import (
	"unicode"
	"unicode/utf8"
)

// singleScript says whether a label, as a U-label, is written in one script in the sense of UTS 39 5.1: the
// characters of no script in particular (digits, hyphens, combining marks) go with any, and Han goes with the
// scripts that are written together with it, Hiragana and Katakana, Bopomofo, or Hangul, but not with two of
// these three. Latin beside any other script is mixed, also where UTS 39 calls that mix highly restrictive. A
// character that this release of Go has no script for makes a label mixed.
//
// Package unicode has no script extensions: what is shared by a few scripts, such as U+30FC, counts as shared
// by all.
func singleScript(label string) bool {
	if isASCII(label) {
		return true // Latin, or no letter at all
	}
	left := japanese | chinese | korean | alone
	var script *unicode.RangeTable // of the letters so far, when they are of no East Asian script
	for _, r := range label {
		table := scriptOf(r)
		set := alone
		switch table {
		case nil:
			return false
		case unicode.Common, unicode.Inherited:
			continue
		case unicode.Han:
			set = japanese | chinese | korean
		case unicode.Hiragana, unicode.Katakana:
			set = japanese
		case unicode.Bopomofo:
			set = chinese
		case unicode.Hangul:
			set = korean
		default:
			if script != nil && script != table {
				return false
			}
			script = table
		}
		if left &= set; left == 0 {
			return false
		}
	}
	return true
}

// writing is a set of the ways to write a label.
type writing uint8

const (
	japanese writing = 1 << iota // Han, Hiragana, Katakana
	chinese                      // Han, Bopomofo
	korean                       // Han, Hangul
	alone                        // one other script
)

// usual are the scripts that most labels are in.
var usual = []*unicode.RangeTable{
	unicode.Latin, unicode.Common, unicode.Han, unicode.Cyrillic, unicode.Greek, unicode.Hiragana, unicode.Katakana,
	unicode.Hangul, unicode.Arabic, unicode.Hebrew, unicode.Devanagari, unicode.Thai, unicode.Inherited, unicode.Bopomofo,
}

// scriptOf returns the script of r, which is one of the tables of package unicode, or nil for a character that
// isn't assigned. Every assigned character is in one script only.
func scriptOf(r rune) *unicode.RangeTable {
	if r < utf8.RuneSelf {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return unicode.Latin
		}
		return unicode.Common
	}
	for _, table := range usual {
		if unicode.Is(table, r) {
			return table
		}
	}
	for _, table := range unicode.Scripts {
		if unicode.Is(table, r) {
			return table
		}
	}
	return nil
}
