package main

import (
	"regexp"
	"strings"
)

// Finding is one piece of personal data in a text.
type Finding struct {
	Kind   string // "email" or "card"
	Masked string // enough to find it again, too little to leak it
	domain string
}

var (
	email = regexp.MustCompile(`[\p{L}\p{N}._%+-]+@((?:[\p{L}\p{N}-]+\.)+\p{L}{2,})`)
	// Groups of digits with one space or dash between them.
	digits = regexp.MustCompile(`[0-9]+(?:[ -][0-9]+)*`)
)

// find gives the personal data in a text, in the order of kinds, then of the text.
func find(text string, kinds []string) []Finding {
	var found []Finding
	for _, kind := range kinds {
		switch kind {
		case "email":
			for _, match := range email.FindAllStringSubmatch(text, -1) {
				first := string([]rune(match[0])[:1])
				found = append(found, Finding{kind, first + "…@" + match[1], strings.ToLower(match[1])})
			}
		case "card":
			for _, run := range digits.FindAllString(text, -1) {
				for _, number := range cards(run) {
					found = append(found, Finding{kind, "…" + number[len(number)-4:], ""})
				}
			}
		}
	}
	return found
}

// cards gives the card numbers in groups of digits: 13 to 19 digits that begin
// and end with a group and have a right check digit.
func cards(run string) []string {
	groups := strings.FieldsFunc(run, func(r rune) bool { return r == ' ' || r == '-' })
	var found []string
	for start := 0; start < len(groups); start++ {
		number := ""
		for end := start; end < len(groups) && len(number) < 19; end++ {
			number += groups[end]
			if len(number) >= 13 && len(number) <= 19 && luhn(number) {
				found = append(found, number)
				start = end // a digit belongs to one number only
				break
			}
		}
	}
	return found
}

// luhn tells whether the last digit is the check digit of the others. Source: ISO/IEC 7812-1, annex B.
func luhn(number string) bool {
	sum := 0
	for i := range len(number) {
		digit := int(number[len(number)-1-i] - '0')
		if i%2 == 1 {
			if digit *= 2; digit > 9 {
				digit -= 9
			}
		}
		sum += digit
	}
	return sum%10 == 0
}
