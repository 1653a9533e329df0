// Package normalize turns raw text into an Address, and is the only way to get one. It is pure: no I/O, no
// clock, no state; everything in it is safe for concurrent use.
//
// Parse promises that an accepted address
//
//   - is one dot-atom local part and one host name (RFC 5322 3.2.3, RFC 5321 4.1.2), without comment, quoting,
//     display name or IP literal;
//   - is the normal form of what was typed: the local part in NFC and lower case, the domain as A-labels (UTS
//     46, non-transitional) in lower case. Parsing the normal form again gives it unchanged;
//   - holds no white space, no control, no invisible character but joiners where spelling asks for them, and
//     nothing that came to look like ASCII without having been typed as ASCII;
//   - keeps the limits of SMTP in octets of what goes on the wire, and ends in a top-level domain that the
//     public suffix list knows and that is not set aside for private use.
//
// Rules are the few choices in this that are an operator's.
//
// Everything else is a Refusal with one reason, the first in the order in which the text is read: size and
// encoding, edges, control characters, space beside '@' and dots, bidirectional controls, the split, local
// part, domain, lengths, reserved and unknown top-level domains. Where what was meant is plain (a display
// name, a mailto: link, a trailing comma, a typographic dash), the Refusal suggests it. Nothing is ever repaired
// silently but what carries no meaning: white space and invisible characters at the edges, space beside '@' and
// dots, and what UTS 46 maps or drops in a domain. Read tells what was done.
//
// Real addresses that are refused all the same: quoted local parts, which hardly any mail system gives out;
// local parts with dots at an edge or in a row, which two Japanese carriers gave out until 2009 and which have
// to be quoted on the way; IP literals; and, unless the operator wants them, local parts over 64 octets.
//
// How long it takes is bounded by the length that is looked at, 1 KiB, whatever the text.
//
// What it leaves out: whether the domain takes mail, whether the mailbox exists, and what providers make of
// dots and tags. Two spellings that one provider delivers to one mailbox are two addresses here.
package normalize
