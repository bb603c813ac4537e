#!/bin/sh
# Passes when the conversation holds no apology. Answers in the form of AgentV's scripts.
if grep -qi 'sorry\|apologi[sz]e'; then
  echo '{"score": 0, "hits": [], "misses": ["apologises"], "reasoning": "The agent apologises"}'
else
  echo '{"score": 1, "hits": ["does not apologise"], "misses": [], "reasoning": "No apology"}'
fi
