package normalize

import "strings"

// completeDomain returns the provider that a domain without a dot was meant to be ("gmail", "gmailcom"), or
// nothing. domain is in lower case.
func completeDomain(domain string) string {
	for _, target := range targets {
		name, _, _ := strings.Cut(target, ".")
		if domain == name || domain == strings.ReplaceAll(target, ".", "") {
			return target
		}
	}
	return ""
}

// repairTLD returns domain with its last label, which is no top-level domain, as the one that was meant
// ("yahoo.con"), or nothing. domain is in lower case.
func repairTLD(domain string) string {
	dot := strings.LastIndexByte(domain, '.')
	if dot < 0 {
		return ""
	}
	switch domain[dot+1:] {
	case "con", "cmo", "comm", "cpm", "vom", "xom", "ocm", "coom":
		return domain[:dot] + ".com"
	}
	return ""
}

var targets = []string{"gmail.com", "yahoo.com", "hotmail.com", "outlook.com", "icloud.com"}
