"""Who answers: a site, its memory, its policy, and the one place where a question is allowed or refused."""
