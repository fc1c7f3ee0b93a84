"""Sums that nobody sees in parts: masked vectors, and a committee that gives the sum of the masks once.

Every site adds to its vector of integers modulo 2^64 one stream of random words for each member of the committee and
seals the seed of stream j for every member but j. Any one member lacks one stream of every site; two hold all. Once the
coordinator has said who reported, members give the sum of every stream over these sites, and what is left of the sum of
the masked vectors is the sum of the vectors.

===========  ==================================================================================================
fixed        vectors of fixed-point integers, and how many bits they need
masks        streams of random words from a seed
keys         who is who: long-lived keys for signatures, keys for one run to seal seeds with
sealing      a few bytes for one receiver
terms        what a run is about; its id is the hash of all of it
contribution what a site sends
reports      who has reported: the set that members sign and answer for
member       what a member signs and answers, and what it remembers of it
coordinator  what takes the masks away
===========  ==================================================================================================

Nothing here knows how messages travel, what is summed, or why.
"""
